#include "tensor_parallel/product_library.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "mesh/half_precision.h"

namespace at::native {

/// LibTorch exports this function but installs no header for it: result = beta result + alpha mat1 mat2, by oneDNN.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);

}  // namespace at::native

namespace meshtrain {
namespace {

/// The lead that BLAS needs: below it the choice is the same in every run, however busy the processor is.
constexpr double kClearly = 1.25;

/// Measures how many times as long BLAS takes as oneDNN, by the shortest of some times of each in turn.
double time_of_blas_by_onednn() {
  constexpr int64_t kSize = 256, kTokens = 512;
  constexpr int kRepetitions = 8;
  std::vector<float> sums(kSize * kSize), rows(kTokens * kSize);  // no tensors', whose memory is counted
  const at::Tensor sum = at::from_blob(sums.data(), {kSize, kSize}),
                   right = at::from_blob(rows.data(), {kTokens, kSize});
  const at::Tensor left = right.t();
  const auto seconds = [](const auto& multiply) {
    const auto start = std::chrono::steady_clock::now();
    multiply();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double onednn = 1e9, blas = 1e9;
  for (int i = 0; i < kRepetitions; ++i) {
    onednn = std::min(onednn, seconds([&] { multiply_by_onednn(sum, left, right, /*beta=*/1); }));
    blas = std::min(blas, seconds([&] { at::Tensor(sum).addmm_(left, right); }));
  }
  return blas / onednn;
}

}  // namespace

void multiply_by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta) {
  at::native::mkldnn_matmul(a, b, out, beta, /*alpha=*/1);
}

bool onednn_multiplies_in_place() {
  return onednn_multiplies(at::kBFloat16);
}

bool onednn_adds_fastest() {
  static const bool fastest = onednn_multiplies_in_place() && time_of_blas_by_onednn() * kClearly > 1;
  return fastest;
}

}  // namespace meshtrain
