#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/optimizer/operators/stochastic_rounding.h"
#include "runtime/training/trainer/operators/squared_norm.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

using Update = void(at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, const std::optional<at::Tensor>&,
                    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                    const std::optional<at::Tensor>&, double, double, double, double, double);

struct Kind {
  at::ScalarType values, gradients;
  std::optional<at::ScalarType> rounded;
  double tolerance;
};

/// Expects the formula for complete vectors, odd numbers of elements, and ranges that begin within a vector. `factor`:
/// has few bits, so that a product with it is rounded once.
void expect_formula(const Kind& kind, int64_t n, int64_t first, std::optional<double> factor) {
  const auto made = [&](at::ScalarType dtype, bool positive = false) {
    const at::Tensor values = fresh({n + first});
    return (positive ? values.abs() : values).to(dtype).to(gpu()).narrow(0, first, n);
  };
  at::Tensor values = made(kind.values), first_moment = made(kind.values), second_moment = made(kind.values, true);
  at::Tensor gradients = made(kind.gradients);
  const at::Tensor gradients_before = gradients.clone();
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kCPU).to(at::kDouble); };
  const double rate = 3e-3 * 0.5;
  const at::Tensor w = wide(values), m_before = wide(first_moment);
  const at::Tensor g = wide((wide(gradients) * factor.value_or(1)).to(kind.gradients));
  const at::Tensor m = 0.9 * wide(first_moment) + 0.1 * g, v = 0.99 * wide(second_moment) + 0.01 * g * g;
  const auto change = [&](const at::Tensor& decayed, const at::Tensor& moment) {
    return rate * (0.1 * decayed + moment / (1 - std::pow(0.9, 7)) / ((v / (1 - std::pow(0.99, 7))).sqrt() + 1e-8));
  };
  const at::Tensor update = -change(w, m);
  // Sizes of the terms, since a sum of two may be near zero, which matters where there are few elements.
  const at::Tensor size_of_m = 0.9 * m_before.abs() + 0.1 * g.abs(), size_of_w = w.abs() + change(w.abs(), size_of_m);
  const at::TensorOptions options(gpu());
  std::optional<at::Tensor> rounded, scalar;
  if (kind.rounded) rounded = at::full({n}, NAN, options.dtype(*kind.rounded));
  if (factor) scalar = at::full({}, *factor, options.dtype(at::kDouble));

  static const Operator<Update> adamw("meshtrain::adamw_");
  const auto step = [&](bool skip) {
    adamw(values, first_moment, second_moment, gradients, rounded, at::full({}, 3e-3, options.dtype(at::kDouble)),
          at::full({}, 7, options.dtype(at::kFloat)), scalar, at::full({}, skip, options.dtype(at::kBool)), 0.5, 0.9,
          0.99, 0.1, 1e-8);
  };
  step(/*skip=*/true);
  EXPECT_TRUE(at::equal(wide(values), w) && at::equal(wide(first_moment), m_before));
  step(/*skip=*/false);

  const std::string what = c10::str("adamw of ", n, " from ", first, ", ", kind.values, " ", kind.gradients);
  const double tolerance = tolerance_for(n, kind.tolerance);
  EXPECT_LE(error_of(values, w + update, size_of_w), tolerance) << what;
  EXPECT_LE(error_of(first_moment, m, size_of_m), tolerance) << what;
  EXPECT_LE(error_of(second_moment, v), tolerance) << what;
  if (kind.values == at::kFloat && n > 100) {  // compares the change, not only the values
    EXPECT_LE(error_of(wide(values) - w, update), 1e-3) << what;
  }
  EXPECT_TRUE(at::equal(gradients, gradients_before)) << what;
  if (rounded) {
    EXPECT_TRUE(at::equal(*rounded, values.to(*kind.rounded))) << what;
  }
}

TEST(AdamWOnGpu, IsTheFormula) {
  const std::vector<Kind> kinds = {
      {at::kFloat, at::kFloat, std::nullopt, 1e-6},   {at::kFloat, at::kFloat, at::kBFloat16, 1e-6},
      {at::kFloat, at::kFloat, at::kHalf, 1e-6},      {at::kFloat, at::kBFloat16, at::kBFloat16, 1e-6},
      {at::kFloat, at::kHalf, at::kHalf, 1e-6},       {at::kBFloat16, at::kBFloat16, std::nullopt, 4e-3},
      {at::kBFloat16, at::kFloat, std::nullopt, 4e-3}};
  for (const Kind& kind : kinds) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{8}, int64_t{1001}, many(3000017)}) {
      for (const int64_t first : {0, 1, 16}) {
        if (n <= 1001 || first == 0) expect_formula(kind, n, first, first == 0 ? std::nullopt : std::optional(0.375));
      }
    }
  }
}

// Offloaded shards are updated on the host, and training must not depend on that.
TEST(AdamWOnGpu, HasTheBitsOfTheHost) {
  if (!has_lanes(at::kFloat)) GTEST_SKIP() << "the host's loops need AVX2";
  const int64_t n = many(300017);
  const at::Tensor w = fresh({n}).to(at::kFloat), m = fresh({n}).to(at::kFloat), v = m.square(), g = w.flip(0);
  for (const std::optional<at::ScalarType> dtype : {std::optional<at::ScalarType>(), {at::kBFloat16}, {at::kHalf}}) {
    for (const double count : {1.0, 2.0, 1000.0}) {
      const auto updated = [&](at::Device device) {
        const at::TensorOptions options(device);
        at::Tensor values = w.to(device, at::kFloat, false, /*copy=*/true),
                   first = m.to(device, at::kFloat, false, true);
        at::Tensor second = v.to(device, at::kFloat, false, true), gradients = g.to(device, at::kFloat, false, true);
        std::optional<at::Tensor> rounded;
        if (dtype) rounded = at::zeros({n}, options.dtype(*dtype));
        static const Operator<Update> adamw("meshtrain::adamw_");
        adamw(values, first, second, gradients, rounded, at::full({}, 3e-3, options.dtype(at::kDouble)),
              at::full({}, count, options.dtype(at::kFloat)), at::full({}, 0.7, options.dtype(at::kDouble)), {}, 0.5,
              0.9, 0.999, 0.1, 1e-8);
        std::vector<at::Tensor> all = {values.cpu(), first.cpu(), second.cpu()};
        if (rounded) all.push_back(rounded->to(at::kFloat).cpu());
        return all;
      };
      const std::vector<at::Tensor> on_gpu = updated(gpu()), on_host = updated(at::kCPU);
      for (size_t i = 0; i < on_gpu.size(); ++i) EXPECT_TRUE(at::equal(on_gpu[i], on_host[i])) << i << " " << count;
    }
  }
}

TEST(SquaredNormOnGpu, IsInFp64AndRepeatable) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{4096}, int64_t{100003}, many(20000001)}) {
      for (const int64_t first : {0, 3}) {
        const at::Tensor x = fresh({n + first}).to(dtype).to(gpu()).narrow(0, first, n);
        poison({at::empty({1 << 12}, at::kDouble)});
        const at::Tensor once = squared_norm(x);
        EXPECT_EQ(once.scalar_type(), at::kDouble);
        EXPECT_LE(error_of(once, x.to(at::kCPU).to(at::kDouble).square().sum()), 1e-12) << n << " " << dtype;
        EXPECT_TRUE(at::equal(once, squared_norm(x)));
      }
    }
  }
}

// Every run of elements, and padding between them, in pieces that begin anywhere.
TEST(StochasticRoundingOnGpu, HasTheBitsOfTheHost) {
  const int64_t n = many(300017);
  const at::Tensor exact = fresh({n}).to(at::kFloat);
  exact[3].fill_(INFINITY);
  exact[n - 1].fill_(NAN);
  const std::vector<ElementRun> runs = {{0, 5, 11, 1000003}, {5, 37, 12, 0}, {64, 1, 13, 9}, {70, n - 90, 14, 4093}};
  for (const int64_t first : {int64_t{0}, int64_t{3}, int64_t{41}, n / 2, n - 20}) {
    const auto rounded = [&](at::Device device) {
      const at::Tensor result = at::full({n - first}, 7, at::TensorOptions(device).dtype(at::kBFloat16));
      round_stochastically(result, exact.slice(0, first).to(device), table_of(runs, device), first, 5, 2);
      return result.to(at::kCPU).view(at::kShort);
    };
    EXPECT_TRUE(at::equal(rounded(gpu()), rounded(at::kCPU))) << "from " << first;
  }
}

}  // namespace
}  // namespace meshtrain::testing
