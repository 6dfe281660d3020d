#include <torch/library.h>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/model/operators/glu_kernel.h"
#include "runtime/training/model/pieces.h"

namespace meshtrain::cuda {
namespace {

Gate gate_of(int64_t activation) {
  return activation == static_cast<int64_t>(Activation::GeluTanh) ? Gate::GeluTanh : Gate::Silu;
}

at::Tensor product(const at::Tensor& gate_up, int64_t activation) {
  const Element element = element_of("glu", gate_up);
  const TensorDeviceGuard device(gate_up);
  const at::Tensor from = gate_up.contiguous();
  at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  glu(element, gate_of(activation), from.const_data_ptr(), out.data_ptr(), out.size(0), out.size(1), device.stream());
  return out;
}

at::Tensor product_backward(const at::Tensor& grad, const at::Tensor& gate_up, int64_t activation) {
  const Element element = element_of("glu_backward", gate_up);
  check_alike("glu_backward", gate_up, {grad});
  const TensorDeviceGuard device(gate_up);
  const at::Tensor grads = grad.contiguous(), from = gate_up.contiguous();
  at::Tensor out = at::empty(gate_up.sizes(), gate_up.options());
  glu_backward(element, gate_of(activation), grads.const_data_ptr(), from.const_data_ptr(), out.data_ptr(),
               grad.size(0), grad.size(1), device.stream());
  return out;
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("glu", product);
  library.impl("glu_backward", product_backward);
}

}  // namespace
}  // namespace meshtrain::cuda
