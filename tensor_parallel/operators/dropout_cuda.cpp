#include <torch/library.h>

#include <bit>

#include "mesh/device/cuda/tensors.h"
#include "tensor_parallel/operators/dropout_bits.h"
#include "tensor_parallel/operators/dropout_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr const char* kDropout = "dropout";

at::Tensor drop(const at::Tensor& x, const at::Tensor& tokens, int64_t first, double probability, int64_t key) {
  const Element element = element_of(kDropout, x);
  TORCH_CHECK(x.dim() == 2 && tokens.scalar_type() == at::kLong && tokens.is_contiguous() &&
                  tokens.numel() == x.size(0) && tokens.device() == x.device(),
              kDropout, ": ", x.sizes(), " on ", x.device(), " with tokens ", tokens.sizes(), " on ", tokens.device());
  const TensorDeviceGuard device(x);
  const at::Tensor from = x.contiguous(), to = at::empty_like(from);
  dropout(element, from.const_data_ptr(), to.data_ptr(), tokens.const_data_ptr<int64_t>(), x.size(0), x.size(1), first,
          std::bit_cast<uint64_t>(key), dropout_threshold(probability), static_cast<float>(1 / (1 - probability)),
          device.stream());
  return to;
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("dropout", drop);
}

}  // namespace
}  // namespace meshtrain::cuda
