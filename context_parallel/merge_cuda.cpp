#include <torch/library.h>

#include "context_parallel/merge_kernel.h"
#include "mesh/device/cuda/tensors.h"

namespace meshtrain::cuda {
namespace {

QueryStrides query_strides(const at::Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void merge_in_place(at::Tensor& out, at::Tensor& lse, const at::Tensor& part_out, const at::Tensor& part_lse) {
  const Element element = element_of("merge_attention_", part_out);
  check_alike("merge_attention_", out, {lse, part_lse});
  TORCH_CHECK(out.scalar_type() == at::kFloat && part_out.device() == out.device() && out.sizes() == part_out.sizes() &&
                  lse.sizes() == part_lse.sizes() && out.stride(3) == 1,
              "merge_attention_: fp32 ", out.sizes(), " and ", part_out.sizes());
  const TensorDeviceGuard device(out);
  const at::Tensor part = part_out.stride(3) == 1 ? part_out : part_out.contiguous();
  const MergeShape shape{out.size(0),        out.size(1),        out.size(2),         out.size(3),
                         query_strides(out), query_strides(lse), query_strides(part), query_strides(part_lse)};
  merge_attention(element, out.data_ptr<float>(), lse.data_ptr<float>(), part.const_data_ptr(),
                  part_lse.const_data_ptr<float>(), shape, device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("merge_attention_", merge_in_place);
}

}  // namespace
}  // namespace meshtrain::cuda
