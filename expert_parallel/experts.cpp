#include "expert_parallel/experts.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "expert_parallel/dispatch.h"
#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"
#include "tensor_parallel/products/deferred.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of the backward that are no activations. Parameters are here and not among the saved variables: hooks on
/// saved variables would copy them, and a refilled storage would count as an error.
struct Calls : torch::CustomClassHolder {
  Calls(ExpertWeights weights, GroupStarts group_starts, GatedActivation gated, LayerInput::Again input_again,
        bool recomputes)
      : experts(std::move(weights)),
        starts(std::move(group_starts)),
        activation(std::move(gated)),
        again(std::move(input_again)),
        recompute(recomputes) {}

  /// Returns gate_up, down, and the biases that exist.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {experts.gate_up, experts.down};
    for (const at::Tensor& bias : {experts.gate_up_bias, experts.down_bias}) {
      if (bias.defined()) all.push_back(bias);
    }
    return all;
  }

  at::Tensor input_again(const std::vector<at::Tensor>& kept) const { return again ? again(kept) : kept[0]; }

  ExpertWeights experts;
  GroupStarts starts;
  GatedActivation activation;
  LayerInput::Again again;
  bool recompute;
};

using CallsPointer = c10::intrusive_ptr<Calls>;

void add_biases(const at::Tensor& y, const at::Tensor& biases, const GroupStarts& starts) {
  if (!biases.defined()) return;
  for_groups(starts, [&](int64_t expert, int64_t first, int64_t count) {
    if (count > 0) y.narrow(0, first, count).add_(biases.select(0, expert));
  });
}

/// The gradients of the experts' weights, from tensors of R rows.
struct WeightGradients {
  at::Tensor dy;         ///< [R, M], of the weighted rows
  at::Tensor weighted;   ///< [R, F], outputs of the activation times the weights of their rows
  at::Tensor weights;    ///< [R]
  at::Tensor d_gate_up;  ///< [R, 2F]
  std::vector<at::Tensor> kept;

  enum Leaf : size_t { GateUp, Down, GateUpBias, DownBias };

  /// Writes or adds the gradient of one leaf to `into`.
  void write(Leaf leaf, const Calls& calls, const at::Tensor& into, bool unwritten) const {
    switch (leaf) {
      case GateUp:
        return add_grouped_product(into, d_gate_up, calls.input_again(kept), calls.starts, unwritten);
      case Down:
        return add_grouped_product(into, dy, weighted, calls.starts, unwritten);
      case GateUpBias:
        return for_groups(calls.starts, [&](int64_t expert, int64_t first, int64_t count) {
          const at::Tensor to = into.select(0, expert);
          const at::Tensor sum = d_gate_up.narrow(0, first, count).sum(0, /*keepdim=*/false, to.scalar_type());
          unwritten ? to.copy_(sum) : to.add_(sum);
        });
      case DownBias: {
        const at::Tensor factors = weights.to(dy.scalar_type()).unsqueeze(1);
        return add_grouped_product(into.unsqueeze(2), dy, factors, calls.starts, unwritten);
      }
    }
  }
};

/// The leaves of a backward, in the order of Calls::leaves(), and what each is.
class Leaves {
 public:
  Leaves(const CallsPointer& calls, const std::vector<bool>& needed) : calls_(calls), needed_(needed) {
    kinds_ = {WeightGradients::GateUp, WeightGradients::Down};
    if (calls->experts.gate_up_bias.defined()) kinds_.push_back(WeightGradients::GateUpBias);
    if (calls->experts.down_bias.defined()) kinds_.push_back(WeightGradients::DownBias);
    leaves_ = calls->leaves();
  }

  bool needed() const { return std::ranges::count(needed_, true) > 0; }
  std::vector<at::Tensor> needed_leaves() const {
    std::vector<at::Tensor> all;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (needed_[i]) all.push_back(leaves_[i]);
    }
    return all;
  }
  bool can_defer() const { return needed() && std::ranges::all_of(needed_leaves(), can_be_deferred); }

  /// Computes all gradients; `results`, from its item `first` on, get those that have no buffers.
  void write(const WeightGradients& gradients, variable_list& results, size_t first) const {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (!needed_[i]) continue;
      const GradientTarget target = gradient_target(leaves_[i]);
      if (target.buffer.defined()) {
        gradients.write(kinds_[i], *calls_, target.buffer, target.unwritten);
      } else {
        results[first + i] = at::empty(leaves_[i].sizes(), leaves_[i].options().requires_grad(false));
        gradients.write(kinds_[i], *calls_, results[first + i], /*unwritten=*/true);
      }
    }
  }

 private:
  CallsPointer calls_;
  std::vector<bool> needed_;
  std::vector<WeightGradients::Leaf> kinds_;
  std::vector<at::Tensor> leaves_;
};

struct ExpertProducts : torch::autograd::Function<ExpertProducts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights, at::TensorList,
                            const CallsPointer& calls, const std::vector<at::Tensor>* kept) {
    const ExpertWeights& experts = calls->experts;
    const at::Tensor gate_up = grouped_product(x, experts.gate_up, calls->starts);
    add_biases(gate_up, experts.gate_up_bias, calls->starts);
    const at::Tensor hidden = calls->activation.forward(gate_up);
    const at::Tensor y = grouped_product(hidden, experts.down, calls->starts);
    add_biases(y, experts.down_bias, calls->starts);
    scale_rows(y, weights);

    variable_list saved = {gate_up, weights, calls->recompute ? at::Tensor() : hidden};
    if (experts.gate_up.requires_grad()) saved.insert(saved.end(), kept->begin(), kept->end());
    ctx->save_for_backward(saved);
    ctx->saved_data["calls"] = c10::IValue::make_capsule(calls);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    require_first_order("a layer of experts");
    const auto calls = c10::static_intrusive_pointer_cast<Calls>(ctx->saved_data["calls"].toCapsule());
    const ExpertWeights& experts = calls->experts;
    constexpr size_t kFirstLeaf = 2;
    const size_t num_leaves = calls->leaves().size();
    std::vector<bool> needed;
    for (size_t i = 0; i < num_leaves; ++i) needed.push_back(ctx->needs_input_grad(kFirstLeaf + i));
    const Leaves leaves(calls, needed);

    variable_list saved = ctx->get_saved_variables(), results(kFirstLeaf + num_leaves + 2);
    const at::Tensor gate_up = saved[0], weights = saved[1], dy = grads[0].contiguous();
    at::Tensor hidden = saved[2].defined() ? saved[2] : calls->activation.forward(gate_up);
    at::Tensor d_hidden = grouped_product(dy, experts.down.transpose(1, 2), calls->starts);  // without the weights
    if (ctx->needs_input_grad(1)) results[1] = weights_gradient(*calls, dy, hidden, d_hidden, weights);
    if (needed[1]) {
      if (saved[2].defined()) hidden = hidden.clone();
      scale_rows(hidden, weights);
    }
    scale_rows(d_hidden, weights);
    const at::Tensor d_gate_up = calls->activation.backward(d_hidden, gate_up);
    d_hidden.reset();
    if (ctx->needs_input_grad(0))
      results[0] = grouped_product(d_gate_up, experts.gate_up.transpose(1, 2), calls->starts);

    WeightGradients gradients{dy, hidden, weights, d_gate_up, {saved.begin() + 3, saved.end()}};
    for (at::Tensor& tensor : gradients.kept) tensor = tensor.detach();  // it would keep the graph of the layers before
    if (DeferringBackward::current() != nullptr && leaves.can_defer()) {
      DeferringBackward::current()->add({leaves.needed_leaves(), {}, [leaves, gradients] {
                                           variable_list none;  // all gradients have buffers
                                           leaves.write(gradients, none, 0);
                                         }});
    } else {
      leaves.write(gradients, results, kFirstLeaf);
    }
    return results;
  }

 private:
  /// Computes <dy, row before its weight> for each row, without the row: <d_hidden, hidden> + <dy, bias>.
  static at::Tensor weights_gradient(const Calls& calls, const at::Tensor& dy, const at::Tensor& hidden,
                                     const at::Tensor& d_hidden, const at::Tensor& weights) {
    const bool halves = c10::isReducedFloatingType(dy.scalar_type());
    const at::Tensor sums = at::zeros({dy.size(0)}, dy.options().dtype(halves ? at::kFloat : dy.scalar_type()));
    add_row_dots(sums, d_hidden, hidden);
    if (calls.experts.down_bias.defined()) {
      for_groups(calls.starts, [&](int64_t expert, int64_t first, int64_t count) {
        if (count == 0) return;
        add_row_dots(sums.narrow(0, first, count), dy.narrow(0, first, count),
                     calls.experts.down_bias.select(0, expert).detach().unsqueeze(0));
      });
    }
    return sums.to(weights.scalar_type());
  }
};

}  // namespace

at::Tensor expert_products(const LayerInput& x, const at::Tensor& weights, const GroupStarts& starts,
                           const ExpertWeights& experts, const GatedActivation& activation, bool recompute) {
  const auto calls = c10::make_intrusive<Calls>(experts, starts, activation, x.again, recompute);
  const std::vector<at::Tensor> leaves = calls->leaves();
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

at::Tensor mixture_over_ranks(const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows,
                              const ExpertWeights& experts, const GatedActivation& activation, bool recompute,
                              const Group& ep, const WithExperts& with_experts) {
  const Dispatch dispatch = plan_dispatch(rows, ep);
  const at::Tensor arrived = send_to_experts(rows_of_tokens(x, rows), dispatch, "ep.rows"),
                   arrived_weights = send_to_experts(weights_of_rows(weights, rows), dispatch, "ep.weights");
  const at::Tensor y = with_experts(
      [&] { return expert_products(arrived, arrived_weights, dispatch.starts, experts, activation, recompute); });
  return sum_of_slots(return_from_experts(y, dispatch, "ep.rows"), rows);
}

}  // namespace meshtrain
