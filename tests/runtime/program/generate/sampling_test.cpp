#include "runtime/program/generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

/// Returns probabilities by id, 0 for excluded ids: transformers' TemperatureLogitsWarper, TopKLogitsWarper and
/// TopPLogitsWarper in this order.
std::vector<double> reference(std::vector<double> scores, const SamplingOptions& options) {
  constexpr double kOut = -std::numeric_limits<double>::infinity();
  for (double& score : scores) score /= options.temperature;
  if (options.top_k > 0) {
    std::vector<double> sorted = scores;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[std::min(static_cast<size_t>(options.top_k), sorted.size()) - 1];
    for (double& score : scores) score = score < kth ? kOut : score;
  }
  const auto softmax = [](const std::vector<double>& values) {
    std::vector<double> result;
    double sum = 0;
    for (const double value : values) sum += std::exp(value);
    for (const double value : values) result.push_back(std::exp(value) / sum);
    return result;
  };
  if (options.top_p < 1) {
    const std::vector<double> before = softmax(scores);
    std::vector<size_t> ascending(scores.size());
    std::iota(ascending.begin(), ascending.end(), size_t{0});
    std::stable_sort(ascending.begin(), ascending.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
    double sum = 0;
    for (size_t i = 0; i + 1 < ascending.size(); ++i) {  // the last one stays
      sum += before[ascending[i]];
      if (sum <= 1 - options.top_p) scores[ascending[i]] = kOut;
    }
  }
  return softmax(scores);
}

std::vector<double> probabilities(const std::vector<double>& logits, const SamplingOptions& options) {
  const std::vector<Candidate> left = candidates(logits, options);
  std::vector<double> result(logits.size(), 0);
  double sum = 0;
  for (const Candidate& candidate : left) sum += candidate.weight;
  int64_t before = -1;
  for (const Candidate& candidate : left) {
    EXPECT_GT(candidate.id, before) << "ascending";
    before = candidate.id;
    result[static_cast<size_t>(candidate.id)] = candidate.weight / sum;
  }
  return result;
}

std::vector<double> random_logits(int64_t count, uint64_t seed) {
  const at::Tensor values = random_tensor({count}, seed) * 3;
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + count};
}

TEST(Sampling, IsThatOfTransformersWarpers) {
  for (const double temperature : {0.3, 1.0, 2.5}) {
    for (const int64_t top_k : {0, 1, 5, 40, 1000}) {
      for (const double top_p : {0.05, 0.5, 0.9, 0.999, 1.0}) {
        const SamplingOptions options{temperature, top_k, top_p, 0};
        const std::vector<double> logits = random_logits(97, static_cast<uint64_t>(top_k + 1));
        const std::vector<double> found = probabilities(logits, options), wanted = reference(logits, options);
        for (size_t id = 0; id < logits.size(); ++id) {
          EXPECT_NEAR(found[id], wanted[id], 1e-12) << temperature << " " << top_k << " " << top_p << " id " << id;
        }
      }
    }
  }
}

std::set<int64_t> ids_left(const std::vector<double>& logits, const SamplingOptions& options) {
  std::set<int64_t> ids;
  for (const Candidate& candidate : candidates(logits, options)) ids.insert(candidate.id);
  return ids;
}

TEST(Sampling, TopPIsReachedWithTheFewest) {
  const std::vector<double> logits = {std::log(0.5), std::log(0.25), std::log(0.125), std::log(0.125)};
  EXPECT_EQ(ids_left(logits, {1, 0, 0.4, 0}), (std::set<int64_t>{0}));
  EXPECT_EQ(ids_left(logits, {1, 0, 0.51, 0}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(ids_left(logits, {1, 0, 0.76, 0}), (std::set<int64_t>{0, 1, 2})) << "of equal ones the lowest id";
  EXPECT_EQ(ids_left(logits, {1, 0, 1e-300, 0}), (std::set<int64_t>{0})) << "one at least";
  EXPECT_EQ(ids_left({0, 0, 0, 0}, {1, 0, 0.5, 0}), (std::set<int64_t>{0, 1})) << "reached exactly";
}

TEST(Sampling, TopKKeepsWhatIsEqualToTheLast) {
  EXPECT_EQ(ids_left({3, 1, 2, 2, 0}, {1, 2, 1, 0}), (std::set<int64_t>{0, 2, 3}));
  EXPECT_EQ(ids_left({3, 1, 2, 2, 0}, {1, 5, 1, 0}).size(), 5u);
}

TEST(Sampling, TopPIsOfWhatTopKLeaves) {
  // 0.4 and 0.3 of all are 0.57 and 0.43 of these two.
  const std::vector<double> logits = {std::log(0.4), std::log(0.3), std::log(0.2), std::log(0.1)};
  EXPECT_EQ(ids_left(logits, {1, 2, 0.5, 0}), (std::set<int64_t>{0}));
  EXPECT_EQ(ids_left(logits, {1, 0, 0.5, 0}), (std::set<int64_t>{0, 1}));
}

TEST(Sampling, SmallTemperaturesAndHugeLogitsAreNoOverflow) {
  EXPECT_EQ(draw(candidates({1e4, 9e3, -1e4}, {1e-3, 0, 1, 0}), 0.999), 0);
  EXPECT_EQ(draw(candidates({-1e308, 1e308}, {1e-300, 0, 0.9, 0}), 0.999), 1);
}

TEST(Sampling, DrawsWhereTheSumPasses) {
  const std::vector<Candidate> all = {{2, 1}, {5, 0}, {7, 2}, {9, 1}, {11, 0}};
  EXPECT_EQ(draw(all, 0), 2);
  EXPECT_EQ(draw(all, 0.2499), 2);
  EXPECT_EQ(draw(all, 0.25), 7);
  EXPECT_EQ(draw(all, 0.7499), 7);
  EXPECT_EQ(draw(all, 0.75), 9);
  EXPECT_EQ(draw(all, 1 - 0x1p-53), 9);
}

TEST(Sampling, UniformNumbersDependOnSeedSequenceAndPosition) {
  std::set<double> numbers;
  for (const uint64_t seed : {0, 1, 42}) {
    for (const uint64_t sequence : {0, 1}) {
      for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
        const double number = uniform_at(seed, sequence, position);
        EXPECT_GE(number, 0);
        EXPECT_LT(number, 1);
        EXPECT_EQ(number, uniform_at(seed, sequence, position));
        numbers.insert(number);
      }
    }
  }
  EXPECT_EQ(numbers.size(), 18u);
}

// Chi-squared of 40,000 draws from 12 candidates: with 11 degrees of freedom it exceeds 31.3 once in a thousand.
TEST(Sampling, TokensAreDrawnAsOftenAsTheyAreLikely) {
  constexpr int kDraws = 40'000;
  const SamplingOptions options{1.3, 12, 1, 0};
  const std::vector<double> logits = random_logits(50, 4), wanted = reference(logits, options);
  const std::vector<Candidate> left = candidates(logits, options);
  ASSERT_EQ(left.size(), 12u);
  std::map<int64_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[draw(left, uniform_at(7, 0, static_cast<uint64_t>(i)))];
  double chi_squared = 0;
  for (const Candidate& candidate : left) {
    const double expected = kDraws * wanted[static_cast<size_t>(candidate.id)];
    chi_squared += std::pow(counts[candidate.id] - expected, 2) / expected;
  }
  EXPECT_LT(chi_squared, 31.3);
  EXPECT_GT(chi_squared, 2) << "closer than chance comes";
}

}  // namespace
}  // namespace meshtrain
