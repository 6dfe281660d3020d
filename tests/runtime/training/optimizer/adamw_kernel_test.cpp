// The AdamW operator against its formula in fp64.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "mesh/device/aten.h"
#include "mesh/device/operator.h"
#include "runtime/training/optimizer/optimizer.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::relative_error;

using Update = void(at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&, const std::optional<at::Tensor>&,
                    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                    const std::optional<at::Tensor>&, double, double, double, double, double);

constexpr double kRate = 0.03, kPart = 0.5, kBeta1 = 0.8, kBeta2 = 0.99, kDecay = 0.1, kEps = 1e-6;
constexpr int kStep = 3;

struct State {
  State(int64_t n, at::ScalarType values_dtype, at::ScalarType gradients_dtype)
      : values(random_tensor({n}, 1, values_dtype)),
        first_moment(random_tensor({n}, 2, values_dtype)),
        second_moment(random_tensor({n}, 3, values_dtype).abs_()),
        gradients(random_tensor({n}, 4, gradients_dtype)) {}

  void update(const std::optional<at::Tensor>& rounded, const std::optional<at::Tensor>& factor,
              double beta2 = kBeta2) {
    static const Operator<Update> adamw("meshtrain::adamw_");
    const at::TensorOptions options = values.options();
    const at::Tensor rate = at::full({}, kRate, options.dtype(at::kDouble));
    adamw(values, first_moment, second_moment, gradients, rounded, rate, at::full({}, kStep, options.dtype(at::kFloat)),
          factor, /*skip=*/std::nullopt, kPart, kBeta1, beta2, kDecay, kEps);
  }

  at::Tensor values, first_moment, second_moment, gradients;
};

TEST(AdamWOperator, IsTheFormula) {
  const std::vector<std::tuple<at::ScalarType, at::ScalarType, double>> kinds = {{at::kDouble, at::kDouble, 1e-13},
                                                                                 {at::kFloat, at::kFloat, 1e-5},
                                                                                 {at::kFloat, at::kBFloat16, 1e-2},
                                                                                 {at::kFloat, at::kHalf, 1e-3},
                                                                                 {at::kBFloat16, at::kBFloat16, 1e-2}};
  for (const auto& [values_dtype, gradients_dtype, tolerance] : kinds) {
    for (const auto& [factor, rounds] : {std::pair(std::optional<double>(), true), {0.37, true}, {0.37, false}}) {
      State state(77, values_dtype, gradients_dtype);
      const at::Tensor w = state.values.to(at::kDouble);
      const at::Tensor g = state.gradients.to(at::kDouble) * factor.value_or(1);
      const at::Tensor m = kBeta1 * state.first_moment.to(at::kDouble) + (1 - kBeta1) * g;
      const at::Tensor v = kBeta2 * state.second_moment.to(at::kDouble) + (1 - kBeta2) * g * g;
      const double rate = kRate * kPart;
      const at::Tensor expected =
          w - rate * kDecay * w -
          rate * m / (1 - std::pow(kBeta1, kStep)) / ((v / (1 - std::pow(kBeta2, kStep))).sqrt() + kEps);
      std::optional<at::Tensor> scalar, rounded;
      if (factor) scalar = at::full({}, *factor, at::kDouble);
      if (rounds && values_dtype == at::kFloat) rounded = at::full({77}, NAN, at::kBFloat16);
      state.update(rounded, scalar);
      EXPECT_LE(relative_error(state.values, expected), tolerance) << values_dtype << gradients_dtype;
      EXPECT_LE(relative_error(state.first_moment, m), tolerance);
      EXPECT_LE(relative_error(state.second_moment, v), tolerance);
      if (rounded) {
        EXPECT_TRUE(at::equal(*rounded, state.values.to(at::kBFloat16)));
      }
    }
  }
}

// 1 - beta2 has few digits when it is subtracted in fp32.
TEST(AdamWOperator, TakesASecondBetaNearOne) {
  for (const double beta2 : {0.999, 0.99999, 0.9999999}) {
    State state(77, at::kFloat, at::kFloat);
    state.second_moment.zero_();
    const at::Tensor expected = (1 - beta2) * state.gradients.to(at::kDouble).square();
    state.update(std::nullopt, std::nullopt, beta2);
    EXPECT_LE(relative_error(state.second_moment, expected), 1e-6) << beta2;
  }
}

TEST(AdamWOperator, NoElementsAndMetaTensors) {
  State none(0, at::kFloat, at::kFloat);
  none.update(std::nullopt, at::ones({}, at::kDouble));
  State meta(5, at::kFloat, at::kBFloat16);
  for (at::Tensor* tensor : {&meta.values, &meta.first_moment, &meta.second_moment, &meta.gradients}) {
    *tensor = tensor->to(at::kMeta);
  }
  meta.update(at::empty({5}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16)),
              at::ones({}, at::TensorOptions(at::kMeta).dtype(at::kDouble)));
  EXPECT_TRUE(meta.values.is_meta());
}

}  // namespace
}  // namespace meshtrain
