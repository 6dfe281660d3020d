// Matrix products of the benchmark's model on one thread: LibTorch's own choice and this project's, in each precision.
//
//   tools/build release products_benchmark && build/release/benchmarks/products_benchmark

#include <cstdio>
#include <functional>

#include "best_seconds.h"
#include "mesh/device/aten.h"
#include "tensor_parallel/products/matrix_product.h"

int main() {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  std::printf("GFLOP/s: x W^T by at::mm, product; y W by the same; G += y^T x by addmm, and by add_product in fp32\n");
  std::printf(
      "| dtype | tokens x in by out | at::mm | ours | at::mm | ours | addmm | ours "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const int repetitions = dtype == at::kFloat ? 7 : 2;  // some of those in halves take seconds
    for (const auto& [tokens, in, out] :
         {std::tuple{1024, 512, 1536}, {1024, 512, 2752}, {1024, 1376, 512}, {1024, 512, 512}, {1024, 512, 4096}}) {
      const at::Tensor x = at::randn({tokens, in}).to(dtype), weight = at::randn({out, in}).to(dtype);
      const at::Tensor y = at::randn({tokens, out}).to(dtype), same = at::zeros({out, in}, dtype);
      const at::Tensor wide = at::zeros({out, in});
      const auto speed = [&](const std::function<void()>& action) {
        return 2e-9 * tokens * in * out / best_seconds(repetitions, action);
      };
      std::printf("| %s | %d x %d by %d | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", c10::toString(dtype), tokens,
                  in, out, speed([&] { at::mm(x, weight.t()); }), speed([&] { meshtrain::product(x, weight); }),
                  speed([&] { at::mm(y, weight); }), speed([&] { meshtrain::product(y, weight.t()); }),
                  speed([&] { at::Tensor(same).addmm_(y.t(), x); }),
                  speed([&] { meshtrain::add_product(wide, y, x); }));
      std::fflush(stdout);
    }
  }
}
