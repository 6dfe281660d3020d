// The grouped product of experts beside one dense product of the same rows and the same number of multiplications, and
// the product of one expert's rows by the weights of all, which reads the same memory; on one thread: forward, gradient
// of x, gradients of weights.
//
//   tools/build release grouped_product_benchmark && build/release/benchmarks/grouped_product_benchmark

#include "tensor_parallel/products/grouped_product.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "mesh/device/aten.h"
#include "tensor_parallel/products/matrix_product.h"

namespace {

double seconds(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Prints the best speeds in GFLOP/s of actions of `flops`, in turns: other work on the machine slows all. After them
/// the ratio of the last one to the first.
void print_speeds(double flops, const std::vector<std::function<void()>>& actions) {
  constexpr int kRepetitions = 9;
  std::vector<double> best(actions.size(), 1e9);
  for (int i = 0; i < kRepetitions; ++i) {
    for (size_t j = 0; j < actions.size(); ++j) best[j] = std::min(best[j], seconds(actions[j]));
  }
  for (const double time : best) std::printf(" %.0f |", flops / time / 1e9);
  std::printf(" %.2f |", best.front() / best.back());
}

}  // namespace

int main() {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  std::printf(
      "GFLOP/s: forward dense | one expert's rows, all weights | grouped | grouped / dense; dx and dW likewise,\n");
  std::printf("without the second\n");
  std::printf("| dtype | experts x rows, in by out | forward | | | | dx | | | dW | | |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [experts, rows, in, out] : {std::array<int64_t, 4>{8, 4, 512, 1536},
                                                 {8, 16, 512, 1536},
                                                 {8, 64, 512, 1536},
                                                 {8, 64, 768, 512},
                                                 {8, 256, 512, 1536},
                                                 {64, 64, 512, 512},
                                                 {16, 64, 2048, 1536}}) {
      meshtrain::GroupStarts starts;
      for (int64_t expert = 0; expert <= experts; ++expert) starts.push_back(expert * rows);
      const int64_t all = experts * rows;
      const at::Tensor x = at::randn({all, in}).to(dtype), dy = at::randn({all, out}).to(dtype);
      const at::Tensor w = at::randn({experts, out, in}).to(dtype), gradients = at::zeros_like(w);
      const at::Tensor one = w[0].clone(), gradient = at::zeros_like(one);
      const double flops = 2.0 * static_cast<double>(all * in * out);
      std::printf("| %s | %ld x %ld, %ld by %ld |", c10::toString(dtype), experts, rows, in, out);
      const at::Tensor few = x.narrow(0, 0, rows), all_weights = w.view({experts * out, in});
      print_speeds(flops, {[&] { meshtrain::product(x, one); }, [&] { meshtrain::product(few, all_weights); },
                           [&] { meshtrain::grouped_product(x, w, starts); }});
      print_speeds(flops, {[&] { meshtrain::product(dy, one.t()); },
                           [&] { meshtrain::grouped_product(dy, w.transpose(1, 2), starts); }});
      print_speeds(flops, {[&] { meshtrain::add_product(gradient, dy, x); },
                           [&] { meshtrain::add_grouped_product(gradients, dy, x, starts); }});
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}
