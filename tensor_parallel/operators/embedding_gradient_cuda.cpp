#include <torch/library.h>

#include <optional>

#include "mesh/device/cuda/tensors.h"
#include "tensor_parallel/operators/embedding_gradient_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr const char* kName = "embedding_gradient_";

void add_gradient(at::Tensor& into, const at::Tensor& ids, const std::optional<at::Tensor>& absent,
                  const at::Tensor& grad) {
  const Element element = element_of(kName, grad), into_element = element_of(kName, into);
  TORCH_CHECK(into_element == element || into_element == Element::Float, kName, ": ", grad.scalar_type(), " into ",
              into.scalar_type());
  TORCH_CHECK(into.is_contiguous() && into.dim() == 2 && grad.size(1) == into.size(1), kName, ": ", grad.sizes(),
              " into ", into.sizes(), ", which must be contiguous");
  const TensorDeviceGuard device(into);
  const int64_t tokens = ids.numel(), rows = into.size(0), size = into.size(1);
  if (tokens == 0 || into.numel() == 0) return;
  const at::Tensor keys = (absent ? ids.masked_fill(*absent, rows) : ids).to(at::kInt);  // absent ones come last
  const auto [sorted, order] = at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor partial = at::empty({embedding_partial_rows(tokens), size}, into.options().dtype(at::kFloat));
  const at::Tensor from = grad.contiguous();
  embedding_gradient(element, into_element, {sorted.const_data_ptr<int32_t>(), order.const_data_ptr<int64_t>(), tokens},
                     from.const_data_ptr(), into.data_ptr(), partial.data_ptr<float>(), rows, size, device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("embedding_gradient_", add_gradient);
}

}  // namespace
}  // namespace meshtrain::cuda
