#include "tensor_parallel/products/product_library.h"

#include "mesh/device/half_precision.h"

namespace at::native {

/// LibTorch exports this function but installs no header for it: result = beta result + alpha mat1 mat2, by oneDNN.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);

}  // namespace at::native

namespace meshtrain {

void multiply_by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta) {
  at::native::mkldnn_matmul(a, b, out, beta, /*alpha=*/1);
}

bool onednn_multiplies_in_place() {
  return onednn_multiplies(at::kBFloat16);
}

}  // namespace meshtrain
