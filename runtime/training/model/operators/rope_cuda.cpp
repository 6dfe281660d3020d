#include <torch/library.h>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/model/operators/rope_kernel.h"

namespace meshtrain::cuda {
namespace {

HeadStrides head_strides(const at::Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

/// Rotates x into `out`: cos and sin [s, 1, D/2] or [B, s, 1, D/2]; x and out [B, s, heads, D].
void rotate_heads(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back, at::Tensor& out) {
  const Element element = element_of("rotate", x);
  check_alike("rotate", x, {cos, sin, out});
  TORCH_CHECK(x.dim() == 4 && out.sizes() == x.sizes() && out.stride(3) == 1 && x.size(3) % 2 == 0, "rotate: x ",
              x.sizes(), " into ", out.sizes(), " of strides ", out.strides());
  const at::Tensor from = x.stride(3) == 1 ? x : x.contiguous();
  const at::Tensor c = cos.contiguous(), s = sin.contiguous();
  const int64_t half = x.size(3) / 2, positions = x.size(1);
  TORCH_CHECK(c.sizes() == s.sizes() && c.size(-1) == half && c.size(-3) == positions &&
                  (c.dim() == 3 || (c.dim() == 4 && (c.size(0) == x.size(0) || c.size(0) == 1))),
              "rotate: angles ", c.sizes(), " for x ", x.sizes());
  const TensorDeviceGuard device(x);
  const bool each = c.dim() == 4 && c.size(0) == x.size(0);
  const RopeShape shape{
      x.size(0), positions, x.size(2), half, head_strides(from), head_strides(out), each ? positions * half : 0, half};
  rotate(element, from.const_data_ptr(), c.const_data_ptr(), s.const_data_ptr(), out.data_ptr(), shape, back,
         device.stream());
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("rotate", rotate_heads);
}

}  // namespace
}  // namespace meshtrain::cuda
