// The rule finds the outliers that OLMo-core's finds: tests/fixtures/training, written by generate_training.py.

#include "runtime/training/trainer/outliers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "mesh/device/aten.h"
#include "tests/support/files.h"

namespace meshtrain {
namespace {

at::Tensor number(double value) {
  return at::scalar_tensor(value, at::kDouble);
}

/// Judges a step, and records it.
int judged(Outliers& outliers, double loss, double grad_norm, bool non_finite = false) {
  const int kinds = static_cast<int>(outliers.judge(number(loss), number(grad_norm)).item<double>());
  outliers.record(number(loss), number(grad_norm), number(non_finite ? 1 : 0));
  return kinds;
}

TEST(Outliers, AreThoseOfTheRuleInPythonAlsoAcrossAResume) {
  std::ifstream file(testing::source_folder() + "/tests/fixtures/training/outliers.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 4u);
  for (const nlohmann::json& one : cases) {
    const OutlierOptions options{.window = one.at("window"), .sigma = one.at("sigma")};
    Outliers outliers(options, at::kCPU);
    const std::vector<double> losses = one.at("losses"), norms = one.at("grad_norms");
    const std::vector<int> wanted = one.at("outliers");
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_EQ(judged(outliers, losses[step], norms[step]), wanted[step]) << options.window << ", step " << step;
      const TrainingState::RecentSteps state = outliers.state();
      EXPECT_EQ(state.losses.size(), std::min<size_t>(step + 1, static_cast<size_t>(options.window)));
      outliers = Outliers(options, at::kCPU);
      outliers.resume(state);
    }
  }
}

TEST(Outliers, AreMeasuredByTheUnbiasedDeviation) {
  Outliers outliers({.window = 6, .sigma = 2}, at::kCPU);
  outliers.resume({{1, 3, 1, 3, 1, 3}, {3, 3, 3, 5, 5, 5}});  // deviations sqrt(6 / 5); the biased ones are 1
  const auto kinds = [&](double loss, double grad_norm) {
    return static_cast<int>(outliers.judge(number(loss), number(grad_norm)).item<double>());
  };
  EXPECT_EQ(kinds(4.19, 6.19), 0);
  EXPECT_EQ(kinds(4.2, 6.19), Outliers::kLoss);
  EXPECT_EQ(kinds(4.19, 6.2), Outliers::kGradNorm);
}

TEST(Outliers, AStepThatIsNotFiniteIsNotRecorded) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  Outliers outliers({.window = 6, .sigma = 2}, at::kCPU);
  for (int step = 0; step < 8; ++step) {
    judged(outliers, 2 + step / 64.0, 1);
    judged(outliers, step % 2 == 0 ? kInfinite : std::numeric_limits<double>::quiet_NaN(), kInfinite, true);
  }
  EXPECT_EQ(outliers.state().losses,
            (std::vector<double>{2 + 2 / 64.0, 2 + 3 / 64.0, 2 + 4 / 64.0, 2 + 5 / 64.0, 2 + 6 / 64.0, 2 + 7 / 64.0}));
  EXPECT_EQ(judged(outliers, 9, 1), Outliers::kLoss);
}

TEST(Outliers, ASmallerWindowTakesTheNewestOfACheckpoint) {
  Outliers outliers({.window = 6, .sigma = 2}, at::kCPU);
  outliers.resume({{1, 2, 3, 4, 5, 6, 7, 8}, {9, 9, 9, 9, 9, 9, 9, 10}});
  EXPECT_EQ(outliers.state().losses, (std::vector<double>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(outliers.state().grad_norms.back(), 10);
}

}  // namespace
}  // namespace meshtrain
