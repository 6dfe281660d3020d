#include "runtime/training/model/token_routing.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the rows `index` of x, [n, M]. The Meta device has no kernel for it.
at::Tensor take(const at::Tensor& x, const at::Tensor& index) {
  return x.is_meta() ? at::empty({index.size(0), x.size(1)}, x.options()) : x.index_select(0, index);
}

/// Returns the rows of all slots, [T, k, M].
at::Tensor at_slots(const at::Tensor& rows, const at::Tensor& position, int64_t slots) {
  return take(rows, position).view({-1, slots, rows.size(1)});
}

/// Returns the rows of all experts, [T k, M].
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& order, int64_t slots) {
  return take(x, order.div(slots, "floor"));
}

struct DispatchFunction : torch::autograd::Function<DispatchFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& position, int64_t slots) {
    ctx->save_for_backward({position});
    ctx->saved_data["slots"] = slots;
    return rows_of(x, order, slots);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor position = ctx->get_saved_variables()[0];
    return {at_slots(grads[0], position, ctx->saved_data["slots"].toInt()).sum(1), {}, {}, {}};
  }
};

struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& order, const at::Tensor& position) {
    ctx->save_for_backward({rows, weights, order, position});
    return (at_slots(rows, position, weights.size(1)) * weights.unsqueeze(-1)).to(rows.scalar_type()).sum(1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1], grad = grads[0].unsqueeze(1);
    at::Tensor grad_rows, grad_weights;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor of_slots = (grad * weights.unsqueeze(-1)).to(rows.scalar_type());
      grad_rows = take(of_slots.view({-1, rows.size(1)}), saved[2]);
    }
    if (ctx->needs_input_grad(1)) {
      const at::ScalarType wide = weights.scalar_type();
      grad_weights = (at_slots(rows, saved[3], weights.size(1)).to(wide) * grad.to(wide)).sum(-1);
    }
    return {grad_rows, grad_weights, {}, {}};
  }
};

std::vector<int64_t> counts_of(const at::Tensor& experts, int64_t num_experts) {
  std::vector<int64_t> counts;
  if (experts.is_meta()) {
    const int64_t rows = experts.numel();
    for (int64_t e = 0; e < num_experts; ++e) counts.push_back((e + 1) * rows / num_experts - e * rows / num_experts);
    return counts;
  }
  const at::Tensor all = at::bincount(experts.flatten(), {}, num_experts).cpu();
  counts.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + num_experts);
  return counts;
}

}  // namespace

TokenRouting route_tokens(const at::Tensor& experts, int64_t num_experts) {
  const at::Tensor order = experts.flatten().argsort(/*stable=*/true, 0, /*descending=*/false);
  return {order, order.argsort(/*stable=*/true, 0, /*descending=*/false), counts_of(experts, num_experts),
          experts.size(1)};
}

LayerInput dispatch_rows(const at::Tensor& x, const TokenRouting& routing) {
  const auto again = [slots = routing.slots](const std::vector<at::Tensor>& kept) {
    return rows_of(kept[0], kept[1], slots);
  };
  return {DispatchFunction::apply(x, routing.order, routing.position, routing.slots), {x, routing.order}, again};
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weights, const TokenRouting& routing) {
  return CombineFunction::apply(rows, weights, routing.order, routing.position);
}

}  // namespace meshtrain
