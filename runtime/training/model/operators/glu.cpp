#include "runtime/training/model/operators/glu.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/model/operators/glu_host.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_gelu(int64_t activation) {
  return activation == static_cast<int64_t>(Activation::GeluTanh);
}

at::Tensor activated(const at::Tensor& gate, int64_t activation) {
  return is_gelu(activation) ? at::gelu(gate, "tanh") : at::silu(gate);
}

/// Returns true when the loops of glu_host.h take the tensor.
bool has_glu_loops(const at::Tensor& gate_up) {
  return has_lanes(gate_up.scalar_type()) && gate_up.size(1) % (2 * kLanes) == 0;
}

at::Tensor glu_forward(const at::Tensor& gate_up, int64_t activation) {
  const int64_t features = gate_up.size(1) / 2;
  if (has_glu_loops(gate_up)) {
    const at::Tensor from = gate_up.contiguous(), out = at::empty({gate_up.size(0), features}, gate_up.options());
    for_lane_rows(from, from.size(0), from.size(1), [&]<class Set, class T>(Set, T, int64_t row, int64_t rows) {
      glu_host::forward<Set>(from.const_data_ptr<T>() + row * 2 * features, rows, features, is_gelu(activation),
                             out.data_ptr<T>() + row * features);
    });
    return out;
  }
  return activated(gate_up.narrow(1, 0, features), activation).mul_(gate_up.narrow(1, features, features));
}

at::Tensor glu_backward(const at::Tensor& grad, const at::Tensor& gate_up, int64_t activation) {
  const int64_t features = gate_up.size(1) / 2;
  if (has_glu_loops(gate_up)) {
    const at::Tensor grads = grad.contiguous(), from = gate_up.contiguous(), out = at::empty_like(from);
    for_lane_rows(from, from.size(0), from.size(1), [&]<class Set, class T>(Set, T, int64_t row, int64_t rows) {
      glu_host::backward<Set>(grads.const_data_ptr<T>() + row * features, from.const_data_ptr<T>() + row * 2 * features,
                              rows, features, is_gelu(activation), out.data_ptr<T>() + row * 2 * features);
    });
    return out;
  }
  const at::Tensor gate = gate_up.narrow(1, 0, features), up = gate_up.narrow(1, features, features);
  at::Tensor grad_gate_up = at::empty_like(gate_up);
  at::Tensor grad_gate = grad_gate_up.narrow(1, 0, features), grad_up = grad_gate_up.narrow(1, features, features);
  at::mul_out(grad_up, grad, activated(gate, activation));
  if (is_gelu(activation)) {
    grad_gate.copy_(at::gelu_backward(grad * up, gate, "tanh"));
  } else {
    at::silu_backward_out(grad_gate, grad * up, gate);
  }
  return grad_gate_up;
}

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

/// Returns the gradient of gate_up and the gradients of the weights (GatedActivation). The weighted results replace
/// `grad`.
TwoTensors glu_weighted_backward(at::Tensor grad, const at::Tensor& gate_up, const at::Tensor& weights,
                                 int64_t activation) {
  const int64_t features = gate_up.size(1) / 2;
  const at::Tensor from = gate_up.contiguous(), factors = weights.contiguous();
  const at::Tensor out = at::empty_like(from), dots = at::empty_like(factors);
  for_lane_rows(from, from.size(0), from.size(1), [&]<class Set, class T>(Set, T, int64_t row, int64_t rows) {
    glu_host::weighted_backward<Set>(grad.data_ptr<T>() + row * features, from.const_data_ptr<T>() + row * 2 * features,
                                     factors.const_data_ptr<float>() + row, rows, features, is_gelu(activation),
                                     out.data_ptr<T>() + row * 2 * features, dots.data_ptr<float>() + row);
  });
  return {out, dots};
}

// What the kernels for CUDA make.

at::Tensor glu_on_gpu(const at::Tensor& gate_up, int64_t) {
  const at::Tensor from = gate_up.contiguous();
  return at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
}

at::Tensor glu_backward_on_gpu(const at::Tensor& grad, const at::Tensor& gate_up, int64_t) {
  const at::Tensor grads = grad.contiguous(), from = gate_up.contiguous();
  return at::empty(gate_up.sizes(), gate_up.options());
}

at::Tensor product_of(const at::Tensor& gate_up, int64_t activation) {
  static const Operator<decltype(glu_forward)> forward("meshtrain::glu");
  return forward(gate_up, activation);
}

at::Tensor gradient_of(const at::Tensor& grad, const at::Tensor& gate_up, int64_t activation) {
  static const Operator<decltype(glu_backward)> backward("meshtrain::glu_backward");
  return backward(grad, gate_up, activation);
}

struct GluFunction : torch::autograd::Function<GluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, int64_t activation) {
    ctx->save_for_backward({gate_up});
    ctx->saved_data["activation"] = activation;
    return product_of(gate_up, activation);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {gradient_of(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["activation"].toInt()), at::Tensor()};
  }
};

}  // namespace

at::Tensor glu(const at::Tensor& gate_up, Activation activation) {
  return GluFunction::apply(gate_up, static_cast<int64_t>(activation));
}

LayerInput recomputed_glu(const at::Tensor& gate_up, Activation activation) {
  return {glu(gate_up, activation), {gate_up}, [activation](const std::vector<at::Tensor>& kept) {
            return glu_value(kept[0], activation);
          }};
}

at::Tensor glu_value(const at::Tensor& gate_up, Activation activation) {
  const at::NoGradGuard no_grad;
  return product_of(gate_up, static_cast<int64_t>(activation));
}

at::Tensor glu_gradient(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation) {
  const at::NoGradGuard no_grad;
  return gradient_of(grad, gate_up, static_cast<int64_t>(activation));
}

GatedActivation glu_of_experts(Activation activation) {
  GatedActivation gated;
  gated.forward = [activation](const at::Tensor& gate_up) { return glu_value(gate_up, activation); };
  gated.backward = [activation](const at::Tensor& grad, const at::Tensor& gate_up) {
    return glu_gradient(grad, gate_up, activation);
  };
  gated.weighted_backward = [activation](const at::Tensor& grad, const at::Tensor& gate_up,
                                         const at::Tensor& weights) -> std::optional<WeightedGradients> {
    if (!is_host(gate_up.device()) || !has_glu_loops(gate_up) || weights.scalar_type() != at::kFloat) return {};
    const at::Tensor hidden = grad.contiguous();
    static const Operator<decltype(glu_weighted_backward)> backward("meshtrain::host_glu_weighted_backward");
    const at::NoGradGuard no_grad;
    const auto [d_gate_up, d_weights] = backward(hidden, gate_up, weights, static_cast<int64_t>(activation));
    return WeightedGradients{d_gate_up, hidden, d_weights};
  };
  return gated;
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&glu_forward, &glu_on_gpu>(library, "glu(Tensor gate_up, int activation) -> Tensor");
  define<&glu_backward, &glu_backward_on_gpu>(library,
                                              "glu_backward(Tensor grad, Tensor gate_up, int activation) -> Tensor");
  define<&glu_weighted_backward, &glu_weighted_backward>(library,
                                                         "host_glu_weighted_backward(Tensor(a!) grad, Tensor gate_up, "
                                                         "Tensor weights, int activation) -> (Tensor, Tensor)");
}

}  // namespace meshtrain
