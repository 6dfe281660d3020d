#include "runtime/optimizer/newton_schulz.h"

#include <ATen/ATen.h>

namespace meshtrain {

at::Tensor newton_schulz(const at::Tensor& matrix, int64_t num_steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
  const bool tall = matrix.size(0) > matrix.size(1);  // the products with the shorter side are the smaller ones
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / (at::linalg_vector_norm(x) + kEps);
  for (int64_t step = 0; step < num_steps; ++step) {
    const at::Tensor square = at::mm(x, x.t());
    const at::Tensor polynomial = at::addmm(square, square, square, /*beta=*/kB, /*alpha=*/kC);
    x = at::addmm(x, polynomial, x, /*beta=*/kA, /*alpha=*/1);
  }
  return tall ? x.t() : x;
}

}  // namespace meshtrain
