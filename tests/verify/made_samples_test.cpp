#include "runtime/program/verify/made_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

constexpr int64_t kLength = 256, kVocabulary = 100;

struct Sample {
  std::vector<int64_t> inputs = std::vector<int64_t>(kLength), labels = std::vector<int64_t>(kLength);
  int64_t counted() const { return kLength - std::count(labels.begin(), labels.end(), kIgnoredLabel); }
  auto operator<=>(const Sample&) const = default;
};

Sample sample(const DataOptions& recipe, int64_t g, uint64_t seed = 1) {
  Sample sample;
  MadeSamples(recipe, kLength, kVocabulary, seed).read(g, sample.inputs.data(), sample.labels.data());
  return sample;
}

TEST(MadeSamples, DependOnSeedAndIndexAlone) {
  EXPECT_EQ(sample({}, 7), sample({}, 7));
  EXPECT_NE(sample({}, 7), sample({}, 8));
  EXPECT_NE(sample({}, 7), sample({}, 7, 2));
}

TEST(MadeSamples, AreTokensAndTheirSuccessors) {
  std::set<int64_t> ids;
  for (int64_t g = 0; g < 8; ++g) {
    const Sample made = sample({}, g);
    EXPECT_TRUE(std::equal(made.inputs.begin() + 1, made.inputs.end(), made.labels.begin()));
    ids.insert(made.inputs.begin(), made.inputs.end());
    EXPECT_EQ(made.counted(), kLength);
  }
  EXPECT_EQ(ids.size(), static_cast<size_t>(kVocabulary));
  EXPECT_EQ(*ids.begin(), 0);
  EXPECT_EQ(*ids.rbegin(), kVocabulary - 1);
}

TEST(MadeSamples, HaveDocumentsOfManyLengths) {
  DataOptions recipe;
  recipe.documents = 3;
  std::set<int64_t> lengths;
  bool some_have_none = false;
  for (int64_t g = 0; g < 16; ++g) {
    const Sample made = sample(recipe, g);
    int64_t length = 0;
    for (const int64_t id : made.inputs) {
      ++length;
      if (id != 3) continue;
      lengths.insert(length);
      length = 0;
    }
    some_have_none |= std::count(made.inputs.begin(), made.inputs.end(), 3) == 0;
  }
  EXPECT_TRUE(some_have_none);
  EXPECT_EQ(*lengths.begin(), 1);
  EXPECT_GT(*lengths.rbegin(), kLength / 4);
  EXPECT_GT(lengths.size(), 10u);
}

TEST(MadeSamples, IgnoreLabelsAfterDocumentsOnRequest) {
  DataOptions recipe;
  recipe.documents = 3;
  recipe.boundaries_count = false;
  int64_t ends = 0;
  for (int64_t g = 0; g < 4; ++g) {
    const Sample made = sample(recipe, g);
    for (int64_t i = 0; i < kLength; ++i) {
      EXPECT_EQ(made.labels[i] == kIgnoredLabel, made.inputs[i] == 3);
      ends += made.inputs[i] == 3;
    }
  }
  EXPECT_GT(ends, 4);
}

TEST(MadeSamples, CountUnevenlyWhereTheRecipeMasks) {
  DataOptions masked, ignoring;
  masked.loss_mask = "/mask.bin";
  ignoring.ignore_id = 5;
  for (const DataOptions& recipe : {masked, ignoring}) {
    std::vector<int64_t> counted;
    for (int64_t g = 0; g < 8; ++g) {
      const Sample made = sample(recipe, g);
      counted.push_back(made.counted());
      const bool has_ignored = std::count(made.labels.begin(), made.labels.end(), 5) > 0;
      EXPECT_FALSE(recipe.ignore_id && has_ignored);
    }
    EXPECT_GE(*std::min_element(counted.begin(), counted.end()), 1);
    EXPECT_LT(*std::min_element(counted.begin(), counted.end()), 3);
    EXPECT_GT(*std::max_element(counted.begin(), counted.end()), kLength / 2);
  }
}

TEST(MadeSamples, RefuseIdsBeyondTheVocabulary) {
  DataOptions recipe;
  recipe.documents = kVocabulary;
  EXPECT_THROW(MadeSamples(recipe, kLength, kVocabulary, 1), InputError);
  recipe.documents.reset();
  recipe.ignore_id = kVocabulary;
  EXPECT_THROW(MadeSamples(recipe, kLength, kVocabulary, 1), InputError);
}

}  // namespace
}  // namespace meshtrain
