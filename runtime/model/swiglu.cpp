#include "runtime/model/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor product_of(const at::Tensor& gate_up) {
  const int64_t features = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, features)).mul_(gate_up.narrow(1, features, features));
}

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    return product_of(gate_up);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const int64_t features = gate_up.size(1) / 2;
    const at::Tensor gate = gate_up.narrow(1, 0, features), up = gate_up.narrow(1, features, features);
    at::Tensor grad = at::empty_like(gate_up);
    at::Tensor grad_gate = grad.narrow(1, 0, features), grad_up = grad.narrow(1, features, features);
    at::mul_out(grad_up, grads[0], at::silu(gate));
    at::silu_backward_out(grad_gate, grads[0] * up, gate);
    return {grad};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  return SwiGluFunction::apply(gate_up);
}

LayerInput recomputed_swiglu(const at::Tensor& gate_up) {
  return {swiglu(gate_up), {gate_up}, [](const std::vector<at::Tensor>& kept) {
            const at::NoGradGuard no_grad;
            return product_of(kept[0]);
          }};
}

}  // namespace meshtrain
