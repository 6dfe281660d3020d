#include "runtime/training/optimizer/newton_schulz.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/host_scratch.h"

namespace meshtrain {
namespace {

constexpr double kEps = 1e-7;

/// x becomes a x + b x^3 + c x^5.
struct Polynomial {
  double a, b, c;
};
constexpr Polynomial kSimple[] = {{3.4445, -4.7750, 2.0315}};
constexpr Polynomial kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                   {3.9505, -6.3029, 2.6377},
                                   {3.7418, -5.5913, 2.3037},
                                   {2.8769, -3.1427, 1.2046},
                                   {2.8366, -3.0525, 1.2012}};
// Each coefficient is divided by 1.01^degree, as in the paper, so that rounded singular values stay below 1.
constexpr Polynomial kPolarExpress[] = {
    {8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250}, {3.2856, -2.4153, 0.4853},
    {2.2779, -1.6198, 0.3985},   {1.8726, -1.2307, 0.3585}, {1.8564, -1.2132, 0.3568}, {1.8750, -1.2500, 0.3750}};

const Polynomial& polynomial_of_step(Coefficients coefficients, int64_t step) {
  if (coefficients == Coefficients::Quintic) return kQuintic[static_cast<size_t>(step) % std::size(kQuintic)];
  if (coefficients == Coefficients::PolarExpress)
    return kPolarExpress[std::min<size_t>(step, std::size(kPolarExpress) - 1)];
  return kSimple[0];
}

// The products of a step.

at::Tensor square_of(const at::Tensor& x) {
  return at::mm(x, x.t());
}

at::Tensor polynomial_of(const at::Tensor& square, const Polynomial& step) {
  return at::addmm(square, square, square, /*beta=*/step.b, /*alpha=*/step.c);
}

at::Tensor next_of(const at::Tensor& x, const at::Tensor& polynomial, const Polynomial& step) {
  return at::addmm(x, polynomial, x, /*beta=*/step.a, /*alpha=*/1);
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

at::Tensor newton_schulz(const at::Tensor& matrix, int64_t num_steps, Coefficients coefficients) {
  const bool tall = matrix.size(0) > matrix.size(1);  // the products with the shorter side are the smaller ones
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / (at::linalg_vector_norm(x) + kEps);
  for (int64_t step = 0; step < num_steps; ++step) {
    const Polynomial& of_step = polynomial_of_step(coefficients, step);
    at::Tensor scratch = scratch_of("square", x, [](const auto& like, const auto&) { return square_of(like); });
    const at::Tensor square = square_of(x);
    scratch = scratch_of("polynomial", x, [](const auto&, const auto& of) { return polynomial_of(of, kSimple[0]); });
    const at::Tensor polynomial = polynomial_of(square, of_step);
    scratch = scratch_of("next", x, [](const auto& like, const auto& of) { return next_of(like, of, kSimple[0]); });
    x = next_of(x, polynomial, of_step);
  }
  return tall ? x.t() : x;
}

}  // namespace meshtrain
