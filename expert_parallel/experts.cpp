#include "expert_parallel/experts.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "expert_parallel/leaf_gradients.h"
#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"
#include "tensor_parallel/products/deferred.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kFirstLeaf = 2;  // the inputs of a function: x, weights, then the leaves

/// The inputs of the backward that are no activations. Parameters are here and not among the saved variables: hooks on
/// saved variables would copy them, and a refilled storage would count as an error.
struct Calls : torch::CustomClassHolder {
  Calls(ExpertLayer experts, GroupStarts group_starts, LayerInput::Again input_again)
      : layer(std::move(experts)), starts(std::move(group_starts)), again(std::move(input_again)) {}

  ExpertLayer layer;
  GroupStarts starts;
  LayerInput::Again again;
};

using CallsPointer = c10::intrusive_ptr<Calls>;

ExpertLeaves leaves_of(AutogradContext* ctx, const ExpertWeights& experts) {
  std::vector<bool> needed;
  for (size_t i = 0; i < ExpertLeaves::of(experts).size(); ++i) {
    needed.push_back(ctx->needs_input_grad(kFirstLeaf + i));
  }
  return {experts, needed};
}

ExpertNeeds needs_of(AutogradContext* ctx, const ExpertLeaves& leaves) {
  return {ctx->needs_input_grad(0), ctx->needs_input_grad(1), leaves.needs_down()};
}

/// The operands of the gradients of a range of the experts.
struct OperandsOfRange {
  Range experts;
  ExpertOperands operands;
};

bool defers(const ExpertLeaves& leaves) {
  return DeferringBackward::current() != nullptr && leaves.can_defer();
}

/// Leaves gradients to the DeferringBackward.
void defer(const ExpertLeaves& leaves, std::vector<OperandsOfRange> ranges) {
  DeferringBackward::current()->add(
      {leaves.needed(), {}, [leaves = ExpertLeaves(leaves), ranges = std::move(ranges)]() mutable {
         variable_list none;  // all gradients have buffers
         leaves.begin(none, 0);
         for (const auto& [experts, operands] : ranges) {
           leaves.write(operands, experts, /*is_first=*/true);
         }
       }});
}

struct ExpertProducts : torch::autograd::Function<ExpertProducts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights, at::TensorList,
                            const CallsPointer& calls, const std::vector<at::Tensor>* kept) {
    ExpertActivations activations;
    const at::Tensor y = expert_forward(calls->layer, x, weights, calls->starts, activations);
    variable_list saved = {activations.gate_up, weights, activations.hidden};
    if (calls->layer.weights.gate_up.requires_grad()) saved.insert(saved.end(), kept->begin(), kept->end());
    ctx->save_for_backward(saved);
    ctx->saved_data["calls"] = c10::IValue::make_capsule(calls);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a layer of experts");
    const auto calls = c10::static_intrusive_pointer_cast<Calls>(ctx->saved_data["calls"].toCapsule());
    ExpertLeaves leaves = leaves_of(ctx, calls->layer.weights);
    const variable_list saved = ctx->get_saved_variables();
    std::vector<at::Tensor> kept(saved.begin() + 3, saved.end());
    for (at::Tensor& tensor : kept) tensor = tensor.detach();  // it would keep the graph of the layers before
    const auto x = [calls, kept] { return calls->again ? calls->again(kept) : kept.at(0); };
    variable_list results(kFirstLeaf + ExpertLeaves::of(calls->layer.weights).size() + 2);
    ExpertGradients gradients = expert_backward(calls->layer, x, saved[1], calls->starts, {saved[0], saved[2]},
                                                grads[0].contiguous(), needs_of(ctx, leaves), {});
    results[0] = gradients.x;
    results[1] = gradients.weights;
    const Range all = {0, static_cast<int64_t>(calls->starts.size()) - 1};
    if (defers(leaves)) {
      defer(leaves, {{all, std::move(*gradients.operands)}});
    } else {
      leaves.begin(results, kFirstLeaf);
      leaves.write(*gradients.operands, all, /*is_first=*/true);
    }
    return results;
  }
};

/// The way of a rank's rows through the experts of all ranks.
struct Way : torch::CustomClassHolder {
  Way(Dispatch made, ExpertLayer experts) : dispatch(std::move(made)), layer(std::move(experts)) {}

  ExpertLayer part(const Dispatch::Piece& piece) const {
    ExpertLayer own = layer;
    own.weights = layer.weights.part(piece.experts.offset, piece.experts.numel);
    return own;
  }

  Dispatch dispatch;
  ExpertLayer layer;
};

using WayPointer = c10::intrusive_ptr<Way>;

/// The rows of all pieces and their weights, on their way to the experts.
struct Sent {
  std::vector<TravellingRows> rows, weights;
};

TravellingRows send_piece(const at::Tensor& all, const Dispatch& dispatch, const Dispatch::Piece& piece,
                          const char* purpose) {
  return start_sending(all.narrow(0, piece.rows.offset, piece.rows.numel), dispatch, piece, purpose);
}

/// Starts to return the rows of a piece into its rows of `all`.
Work return_piece(const at::Tensor& y, const at::Tensor& all, const Dispatch& dispatch, const Dispatch::Piece& piece,
                  const char* purpose) {
  return start_returning(y, all.narrow(0, piece.rows.offset, piece.rows.numel), dispatch, piece, purpose);
}

void wait_for(const std::vector<Work>& works) {
  for (const Work& work : works) work.wait();
}

at::Tensor take(at::Tensor& tensor) {
  return std::exchange(tensor, at::Tensor());
}

constexpr size_t kSavedOfPiece = 4;  // x, weights, gate_up, hidden

struct OverRanks : torch::autograd::Function<OverRanks> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor&, at::TensorList,
                            const WayPointer& way, Sent* sent) {
    const Dispatch& dispatch = way->dispatch;
    const at::Tensor returned = at::empty({dispatch.rows.tokens.size(0), x.size(1)}, x.options());
    std::vector<Work> returning;
    variable_list saved;
    for (size_t i = 0; i < dispatch.pieces.size(); ++i) {
      const Dispatch::Piece& piece = dispatch.pieces[i];
      const at::Tensor rows = arrived(sent->rows[i], piece), weights = arrived(sent->weights[i], piece);
      sent->rows[i] = sent->weights[i] = {};
      ExpertActivations kept;
      const at::Tensor y = expert_forward(way->part(piece), rows, weights, piece.starts, kept);
      returning.push_back(return_piece(y, returned, dispatch, piece, "ep.rows"));
      saved.insert(saved.end(), {rows, weights, kept.gate_up, kept.hidden});
    }
    if (!way->layer.weights.gate_up.requires_grad() && way->layer.rows_of_block == 0) {
      for (size_t i = 0; i < saved.size(); i += kSavedOfPiece) saved[i].reset();
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["way"] = c10::IValue::make_capsule(way);
    wait_for(returning);
    return sum_of_slots(returned, dispatch.rows);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a layer of experts");
    const auto way = c10::static_intrusive_pointer_cast<Way>(ctx->saved_data["way"].toCapsule());
    const Dispatch& dispatch = way->dispatch;
    ExpertLeaves leaves = leaves_of(ctx, way->layer.weights);
    const ExpertNeeds needs = needs_of(ctx, leaves);
    variable_list saved = ctx->get_saved_variables();
    variable_list results(kFirstLeaf + ExpertLeaves::of(way->layer.weights).size() + 2);

    std::vector<TravellingRows> sent;
    {
      const at::Tensor dy = rows_of_tokens(grads[0], dispatch.rows);
      for (const Dispatch::Piece& piece : dispatch.pieces) sent.push_back(send_piece(dy, dispatch, piece, "ep.rows"));
    }
    const int64_t num_rows = dispatch.rows.tokens.size(0);
    at::Tensor dx, d_weights;
    if (needs.x) dx = at::empty({num_rows, grads[0].size(1)}, grads[0].options());
    if (needs.weights) d_weights = at::empty({num_rows}, saved[1].options());
    std::vector<Work> returning;
    std::vector<OperandsOfRange> ranges;
    const bool writes_later = way->layer.rows_of_block == 0 && defers(leaves);
    if (!writes_later) leaves.begin(results, kFirstLeaf);
    for (size_t i = 0; i < dispatch.pieces.size(); ++i) {
      const Dispatch::Piece& piece = dispatch.pieces[i];
      at::Tensor* const of_piece = &saved[i * kSavedOfPiece];
      const at::Tensor dy = arrived(sent[i], piece);
      sent[i] = {};
      bool is_first = true;
      const auto write = [&](const ExpertOperands& operands) {
        leaves.write(operands, piece.experts, std::exchange(is_first, false));
      };
      const auto x = [rows = take(of_piece[0])] { return rows; };
      ExpertGradients gradients = expert_backward(way->part(piece), x, of_piece[1], piece.starts,
                                                  {take(of_piece[2]), take(of_piece[3])}, dy, needs, write);
      if (needs.x) returning.push_back(return_piece(gradients.x, dx, dispatch, piece, "ep.rows"));
      if (needs.weights) returning.push_back(return_piece(gradients.weights, d_weights, dispatch, piece, "ep.weights"));
      if (!gradients.operands) continue;
      if (writes_later) {
        ranges.push_back({piece.experts, std::move(*gradients.operands)});
      } else {
        write(*gradients.operands);  // while gradients of rows travel
      }
    }
    if (writes_later) defer(leaves, std::move(ranges));
    wait_for(returning);
    if (needs.x) results[0] = sum_of_slots(dx, dispatch.rows);
    if (needs.weights) results[1] = weights_of_pairs(d_weights, dispatch.rows);
    return results;
  }
};

}  // namespace

at::Tensor expert_products(const LayerInput& x, const at::Tensor& weights, const GroupStarts& starts,
                           const ExpertWeights& experts, const GatedActivation& activation, bool recompute) {
  const auto calls = c10::make_intrusive<Calls>(ExpertLayer{experts, activation, recompute}, starts, x.again);
  const std::vector<at::Tensor> leaves = ExpertLeaves::of(experts);
  const at::TensorList list = leaves;
  return ExpertProducts::apply(x.value, weights, list, calls, &x.kept);
}

at::Tensor mixture(const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows, const ExpertWeights& experts,
                   const GatedActivation& activation, bool recompute) {
  const LayerInput sorted(rows_of_tokens(x, rows), {x, rows.tokens}, [](const std::vector<at::Tensor>& kept) {
    const at::NoGradGuard no_grad;
    return rows_at(kept[0], kept[1]);
  });
  return sum_of_slots(
      expert_products(sorted, weights_of_rows(weights, rows), rows.starts, experts, activation, recompute), rows);
}

at::Tensor mixture_over_ranks(const at::Tensor& x, const at::Tensor& weights, const Dispatch& dispatch,
                              const ExpertWeights& experts, const GatedActivation& activation, bool recompute,
                              const WithExperts& with_experts) {
  ExpertLayer layer{experts, activation, recompute};
  const int64_t received = dispatch.num_received(), average = (received + dispatch.ep.size() - 1) / dispatch.ep.size();
  const int64_t most = kMostKeptRows * std::max(dispatch.rows.tokens.size(0), average);
  if (received > most) layer.rows_of_block = most;
  Sent sent;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor rows = rows_of_tokens(x, dispatch.rows), of_rows = weights_of_rows(weights, dispatch.rows);
    for (const Dispatch::Piece& piece : dispatch.pieces) {
      sent.rows.push_back(send_piece(rows, dispatch, piece, "ep.rows"));
      sent.weights.push_back(send_piece(of_rows, dispatch, piece, "ep.weights"));
    }
  }
  const auto way = c10::make_intrusive<Way>(dispatch, layer);
  const std::vector<at::Tensor> leaves = ExpertLeaves::of(experts);
  return with_experts([&] {
    const at::TensorList list = leaves;
    return OverRanks::apply(x, weights, list, way, &sent);
  });
}

}  // namespace meshtrain
