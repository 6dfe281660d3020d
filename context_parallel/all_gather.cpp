#include "context_parallel/all_gather.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>

#include "context_parallel/attention_kernels.h"
#include "context_parallel/blocks.h"
#include "context_parallel/key_value_wire.h"
#include "context_parallel/running_attention.h"

namespace meshtrain {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// One call of attention, kept from forward to backward.
struct Call : torch::CustomClassHolder {
  Call(const SequenceLayout& a_layout, const Group& a_group, double a_scale, int64_t batch)
      : layout(a_layout), group(a_group), scale(a_scale), plans(plan_rows(a_layout, batch)) {}

  SequenceLayout layout;
  Group group;
  double scale;
  std::vector<RowPlan> plans;
};

/// The plan's rows of a [B, heads, positions, ...] tensor, positions [start, start + size).
at::Tensor part(const at::Tensor& tensor, const RowPlan& plan, int64_t start, int64_t size) {
  return tensor.narrow(0, plan.first_row, plan.num_rows).narrow(2, start, size);
}

Attended forward(const Call& call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  std::optional<KeyValueGather> gather;
  if (call.group.size() > 1) gather.emplace(k, v, call.layout, call.group);

  std::vector<RunningAttention> running(call.plans.size());
  const auto add = [&](size_t i, const Block& block, const at::Tensor& keys, const at::Tensor& values, int64_t key) {
    const RowPlan& plan = call.plans[i];
    running[i].add(block.query,
                   attend(part(q, plan, block.query, block.num_queries), part(keys, plan, key, block.num_keys),
                          part(values, plan, key, block.num_keys), block.causal, call.scale));
  };
  for (size_t i = 0; i < call.plans.size(); ++i) {
    for (const Block& block : call.plans[i].diagonals) add(i, block, k, v, block.query);
  }
  if (gather) {
    const KeyValues all = gather->wait();
    const at::Tensor keys = all.keys(), values = all.values();
    for (size_t i = 0; i < call.plans.size(); ++i) {
      for (const Block& block : call.plans[i].rectangles) add(i, block, keys, values, block.key);
    }
  }

  const at::ScalarType lse_dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Attended all;
  all.out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  all.lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(lse_dtype)).transpose(1, 2);
  for (size_t i = 0; i < call.plans.size(); ++i) {
    const RowPlan& plan = call.plans[i];
    running[i].finish(part(all.out, plan, 0, q.size(2)), part(all.lse, plan, 0, q.size(2)));
  }
  return all;
}

/// One block's place in the work of all rows.
struct Piece {
  const RowPlan* plan;
  const Block* block;
};

std::vector<Piece> pieces(const std::vector<RowPlan>& plans, std::vector<Block> RowPlan::*blocks) {
  std::vector<Piece> all;
  for (const RowPlan& plan : plans) {
    for (const Block& block : plan.*blocks) all.push_back({&plan, &block});
  }
  return all;
}

AttentionGradients backward(const Call& call, const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const Attended& attended) {
  std::optional<KeyValueGather> gather;
  if (call.group.size() > 1) gather.emplace(k, v, call.layout, call.group);

  const at::ScalarType dtype = attended.lse.scalar_type();
  const at::Tensor dq =
      at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options().dtype(dtype)).transpose(1, 2);
  const KeyValues own = KeyValues::empty(k.size(2), k, dtype);  // from the diagonals: each position is in one

  const auto compute = [&](const Piece& piece, const at::Tensor& keys, const at::Tensor& values, int64_t key) {
    const auto& [plan, block] = piece;
    const auto queries = [&, plan = plan, block = block](const at::Tensor& tensor) {
      return part(tensor, *plan, block->query, block->num_queries);
    };
    AttentionGradients gradients =
        attend_backward(queries(grad_out), queries(q), part(keys, *plan, key, block->num_keys),
                        part(values, *plan, key, block->num_keys), {queries(attended.out), queries(attended.lse)},
                        block->causal, call.scale);
    queries(dq).add_(gradients.q);
    return gradients;
  };
  const std::vector<Piece> diagonals = pieces(call.plans, &RowPlan::diagonals);
  const auto compute_diagonals = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const auto& [plan, block] = diagonals[i];
      const AttentionGradients gradients = compute(diagonals[i], k, v, block->query);
      part(own.keys(), *plan, block->query, block->num_keys).copy_(gradients.k);
      part(own.values(), *plan, block->query, block->num_keys).copy_(gradients.v);
    }
  };

  // Half of the diagonals compute while keys come, the rest while gradients go.
  compute_diagonals(0, diagonals.size() / 2);
  std::optional<KeyValueGradients> others;
  if (gather) {
    others.emplace(k, dtype, call.layout);
    const KeyValues all = gather->wait();
    gather.reset();
    const at::Tensor keys = all.keys(), values = all.values();
    for (const Piece& piece : pieces(call.plans, &RowPlan::rectangles)) {
      const AttentionGradients gradients = compute(piece, keys, values, piece.block->key);
      others->add(piece.plan->first_row, piece.block->key, gradients.k, gradients.v);
    }
    others->send(call.group);
  }
  compute_diagonals(diagonals.size() / 2, diagonals.size());
  if (others) own.packed.add_(others->wait().packed);
  return {dq.to(q.scalar_type()), own.keys().to(k.scalar_type()), own.values().to(v.scalar_type())};
}

struct AllGatherAttention : torch::autograd::Function<AllGatherAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const c10::intrusive_ptr<Call>& call) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    Attended attended = meshtrain::forward(*call, q, k, v);
    context->save_for_backward({q, k, v, attended.out, attended.lse});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return attended.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_out) {
    const variable_list saved = context->get_saved_variables();
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    AttentionGradients gradients =
        meshtrain::backward(*call, grad_out[0], saved[0], saved[1], saved[2], {saved[3], saved[4]});
    return {gradients.q, gradients.k, gradients.v, at::Tensor()};
  }
};

}  // namespace

at::Tensor all_gather_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const SequenceLayout& layout, const Group& group, double scale) {
  return AllGatherAttention::apply(q, k, v, c10::make_intrusive<Call>(layout, group, scale, q.size(0)));
}

}  // namespace meshtrain
