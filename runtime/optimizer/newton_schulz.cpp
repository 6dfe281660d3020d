#include "runtime/optimizer/newton_schulz.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "mesh/host_scratch.h"

namespace meshtrain {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;

// The products of a step.

at::Tensor square_of(const at::Tensor& x) {
  return at::mm(x, x.t());
}

at::Tensor polynomial_of(const at::Tensor& square) {
  return at::addmm(square, square, square, /*beta=*/kB, /*alpha=*/kC);
}

at::Tensor next_of(const at::Tensor& x, const at::Tensor& polynomial) {
  return at::addmm(x, polynomial, x, /*beta=*/kA, /*alpha=*/1);
}

/// Returns what the product `name` of a step with `x` allocates for a moment: `compute` of zeros like `x` and its
/// square. In a dry run for the host alone.
template <class Compute>
at::Tensor scratch_of(const std::string& name, const at::Tensor& x, const Compute& compute) {
  if (!has_host_scratch(x)) return {};
  const int64_t rows = x.size(0), columns = x.size(1);
  const bool by_columns = !x.is_contiguous();
  const std::string key = name + " " + c10::toString(x.scalar_type()) + " " + std::to_string(rows) +
                          (by_columns ? "t" : "x") + std::to_string(columns);
  return host_scratch(key, [&]() -> HostComputation {
    const at::TensorOptions options(x.scalar_type());
    const at::Tensor like = by_columns ? at::zeros({columns, rows}, options).t() : at::zeros({rows, columns}, options);
    const at::Tensor square = at::zeros({rows, rows}, options);
    return [=] { return std::vector<at::Tensor>{compute(like, square)}; };
  });
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& matrix, int64_t num_steps) {
  const bool tall = matrix.size(0) > matrix.size(1);  // the products with the shorter side are the smaller ones
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / (at::linalg_vector_norm(x) + kEps);
  for (int64_t step = 0; step < num_steps; ++step) {
    at::Tensor scratch = scratch_of("square", x, [](const auto& like, const auto&) { return square_of(like); });
    const at::Tensor square = square_of(x);
    scratch = scratch_of("polynomial", x, [](const auto&, const auto& of) { return polynomial_of(of); });
    const at::Tensor polynomial = polynomial_of(square);
    scratch = scratch_of("next", x, next_of);
    x = next_of(x, polynomial);
  }
  return tall ? x.t() : x;
}

}  // namespace meshtrain
