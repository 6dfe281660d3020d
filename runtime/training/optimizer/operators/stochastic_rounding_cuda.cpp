#include <torch/library.h>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/optimizer/operators/stochastic_rounding_kernel.h"

namespace meshtrain::cuda {
namespace {

void round(at::Tensor& rounded, const at::Tensor& exact, const at::Tensor& runs, int64_t first, int64_t step,
           int64_t stream) {
  TORCH_CHECK(rounded.scalar_type() == at::kBFloat16 && exact.scalar_type() == at::kFloat &&
                  runs.scalar_type() == at::kLong && rounded.is_contiguous() && exact.is_contiguous() &&
                  runs.is_contiguous() && exact.numel() == rounded.numel() && exact.device() == rounded.device() &&
                  runs.device() == rounded.device(),
              "round_stochastically_: takes fp32 to bf16, contiguous on one device, not ", exact.scalar_type(), " on ",
              exact.device(), " to ", rounded.scalar_type(), " on ", rounded.device(), ", runs on ", runs.device());
  const TensorDeviceGuard device(rounded);
  round_stochastically(rounded.data_ptr(), exact.const_data_ptr<float>(), rounded.numel(),
                       static_cast<const ElementRun*>(runs.const_data_ptr()), runs.size(0), first,
                       static_cast<uint32_t>(step), static_cast<uint32_t>(stream), device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("round_stochastically_", round);
}

}  // namespace
}  // namespace meshtrain::cuda
