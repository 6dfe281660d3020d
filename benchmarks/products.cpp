// fp32 matrix products of the benchmark's model on one thread: LibTorch's own choice and this project's.
//
//   tools/build release products_benchmark && build/release/benchmarks/products_benchmark

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "tensor_parallel/matrix_product.h"

namespace {

constexpr int kRepetitions = 7;

double best_seconds(const std::function<void()>& action) {
  double best = 1e9;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main() {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  std::printf("| x W^T | at::mm, GFLOP/s | product, GFLOP/s |\n|---|---|---|\n");
  for (const auto& [tokens, in, out] :
       {std::tuple{1024, 512, 1536}, {1024, 512, 2752}, {1024, 1376, 512}, {1024, 512, 512}, {1024, 512, 4096}}) {
    const at::Tensor x = at::randn({tokens, in}), weight = at::randn({out, in});
    const double flop = 2e-9 * tokens * in * out;
    const double theirs = best_seconds([&] { at::mm(x, weight.t()); });
    const double ours = best_seconds([&] { meshtrain::product(x, weight); });
    std::printf("| %d x %d by %d x %d | %.0f | %.0f |\n", tokens, in, in, out, flop / theirs, flop / ours);
  }
}
