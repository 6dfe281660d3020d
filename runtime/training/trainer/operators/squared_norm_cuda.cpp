#include <torch/library.h>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/trainer/operators/squared_norm_kernel.h"

namespace meshtrain::cuda {
namespace {

at::Tensor squared_norm_of(const at::Tensor& elements) {
  const Element element = element_of("squared_norm", elements);
  const TensorDeviceGuard device(elements);
  const at::Tensor from = elements.contiguous();
  const at::TensorOptions options = elements.options().dtype(at::kDouble);
  at::Tensor sum = at::empty({}, options), partials = at::empty({squared_norm_partials(from.numel())}, options);
  squared_norm(element, from.const_data_ptr(), from.numel(), partials.data_ptr<double>(), sum.data_ptr<double>(),
               device.stream());
  return sum;
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("squared_norm", squared_norm_of);
}

}  // namespace
}  // namespace meshtrain::cuda
