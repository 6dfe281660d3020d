#include <torch/library.h>

#include "mesh/cuda/tensors.h"
#include "runtime/model/swiglu_kernel.h"

namespace meshtrain::cuda {
namespace {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const Element element = element_of("swiglu", gate_up);
  const OnDevice device(gate_up);
  const at::Tensor from = gate_up.contiguous();
  at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  swiglu(element, from.const_data_ptr(), out.data_ptr(), out.size(0), out.size(1), device.stream());
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up) {
  const Element element = element_of("swiglu_backward", gate_up);
  check_alike("swiglu_backward", gate_up, {grad});
  const OnDevice device(gate_up);
  const at::Tensor grads = grad.contiguous(), from = gate_up.contiguous();
  at::Tensor out = at::empty(gate_up.sizes(), gate_up.options());
  swiglu_backward(element, grads.const_data_ptr(), from.const_data_ptr(), out.data_ptr(), grad.size(0), grad.size(1),
                  device.stream());
  return out;
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("swiglu", static_cast<at::Tensor (*)(const at::Tensor&)>(swiglu));
  library.impl("swiglu_backward", static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(swiglu_backward));
}

}  // namespace
}  // namespace meshtrain::cuda
