#include "runtime/training/data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "mesh/base/error.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_ids;

const std::vector<std::vector<double>> kWeights = {
    {1}, {0.7, 0.3}, {1, 1, 1}, {5, 1e-3, 2}, {1e-12, 1}, {3, 1, 4, 1, 5, 9, 2, 6}, {1e300, 1e300, 1e299},
};

TEST(Interleave, EverySampleOfASourceComesOnceAndInItsOrder) {
  for (const std::vector<double>& weights : kWeights) {
    const Interleave interleave(weights);
    std::vector<int64_t> next(weights.size());
    for (int64_t g = 0; g < 5000; ++g) {
      ASSERT_EQ(interleave.counts(g), next) << g;
      const auto [source, index] = interleave.at(g);
      ASSERT_EQ(index, next.at(source)++) << g;
    }
  }
}

TEST(Interleave, FractionsAreKeptToAFewSamplesAtEveryTime) {
  for (const std::vector<double>& weights : kWeights) {
    const Interleave interleave(weights);
    const double largest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (const double weight : weights) sum += weight / largest;
    const double bound = std::ceil(std::log2(weights.size())) / 2;
    for (int64_t g = 0; g < 3'000'000; g = g * 5 / 4 + 1) {
      const std::vector<int64_t> counts = interleave.counts(g);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), g);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double wanted = weights[i] / largest / sum * static_cast<double>(g);
        EXPECT_NEAR(static_cast<double>(counts[i]), wanted, bound + 1e-8 * static_cast<double>(g)) << g << " " << i;
      }
    }
  }
}

TEST(Interleave, IsTheSameFarOut) {
  const Interleave interleave({0.7, 0.3});
  const int64_t far = int64_t{1} << 60;
  const std::vector<int64_t> before = interleave.counts(far), after = interleave.counts(far + 1);
  const auto [source, index] = interleave.at(far);
  EXPECT_EQ(index, before[source]);
  EXPECT_EQ(after[source], index + 1);
  EXPECT_NEAR(static_cast<double>(before[0]) / static_cast<double>(far), 0.7, 1e-9);
}

TEST(Interleave, StaysWhatItIs) {  // a resumed run needs the order that it began with
  const Interleave interleave({2, 1, 1});
  std::vector<size_t> sources;
  for (int64_t g = 0; g < 12; ++g) sources.push_back(interleave.at(g).source);
  EXPECT_EQ(sources, (std::vector<size_t>{0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 2}));
}

class MixtureTest : public ::testing::Test {
 protected:
  static constexpr int64_t kS = 4;

  /// Writes a file of `samples` samples with tokens from 100 * name on.
  MixedSource source(int64_t name, int64_t samples, double weight) {
    MixedSource source;
    source.tokens = folder_.path() / (std::to_string(name) + ".bin");
    source.weight = weight;
    std::vector<int64_t> ids(static_cast<size_t>(samples * (kS + 1)));
    std::iota(ids.begin(), ids.end(), 100 * name);
    write_ids<uint16_t>(source.tokens, ids);
    return source;
  }
  static Mixture open(const DataOptions& recipe, uint64_t seed = 1) { return Mixture(recipe, kS, 1000, seed); }

  ScratchFolder folder_;
};

TEST_F(MixtureTest, EachSourceHasEpochsOfItsOwn) {
  DataOptions recipe;
  recipe.mixture = {source(1, 5, 3), source(2, 9, 1)};
  for (const bool shuffle : {false, true}) {
    for (MixedSource& each : recipe.mixture) each.shuffle = shuffle;
    const Mixture mixture = open(recipe);
    EXPECT_EQ(mixture.num_samples(), 14);
    std::vector<std::vector<int64_t>> samples(2);
    for (int64_t g = 0; g < 400; ++g) {
      const Mixture::Location location = mixture.locate(g);
      samples.at(location.source).push_back(location.sample);
    }
    EXPECT_EQ(samples[0].size(), 300u);
    EXPECT_EQ(mixture.counts(400), (std::vector<int64_t>{300, 100}));
    for (size_t i = 0; i < 2; ++i) {
      const size_t n = i == 0 ? 5 : 9;
      std::set<std::vector<int64_t>> orders;
      for (size_t first = 0; first + n <= samples[i].size(); first += n) {
        const std::vector<int64_t> epoch(samples[i].begin() + first, samples[i].begin() + first + n);
        EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), n) << "one is repeated within an epoch";
        orders.insert(epoch);
      }
      EXPECT_EQ(orders.size() > 1, shuffle);
    }
  }
}

TEST_F(MixtureTest, ReadsWhatIsInThePlace) {
  DataOptions recipe;
  recipe.mixture = {source(1, 5, 1), source(2, 9, 1), source(3, 3, 1)};
  recipe.mixture[1].shuffle = true;
  recipe.mixture[2].ignore_id = 301;
  recipe.mixture[2].documents = 300;
  const Mixture mixture = open(recipe);
  for (int64_t g = 0; g < 60; ++g) {
    std::vector<int64_t> inputs(kS), labels(kS);
    const std::vector<int64_t> starts = mixture.read(g, inputs.data(), labels.data());
    const auto [source, sample] = mixture.locate(g);
    const int64_t first = 100 * (static_cast<int64_t>(source) + 1) + sample * (kS + 1);
    EXPECT_EQ(inputs[0], first);
    EXPECT_EQ(labels[3], first + kS);
    EXPECT_EQ(labels[0], first == 300 ? kIgnoredLabel : first + 1);
    EXPECT_EQ(starts, first == 300 ? std::vector<int64_t>{1} : std::vector<int64_t>()) << "of the third alone";
  }
}

TEST_F(MixtureTest, OneFileIsWhatItIsWithoutAMixture) {
  DataOptions alone, mixed;
  mixed.mixture = {source(1, 50, 0.1)};
  static_cast<SourceOptions&>(alone) = mixed.mixture[0];
  alone.shuffle = mixed.mixture[0].shuffle = true;
  const Dataset dataset(alone, kS, 1000, 7);
  for (int64_t g = 0; g < 120; ++g) {
    EXPECT_EQ(open(alone, 7).locate(g), (Mixture::Location{0, dataset.index_in_file(g)}));
    EXPECT_EQ(open(mixed, 7).locate(g), open(alone, 7).locate(g));
  }
}

TEST_F(MixtureTest, TheSameFileTwiceIsShuffledTwice) {
  DataOptions recipe;
  recipe.mixture = {source(1, 50, 1), source(1, 50, 1)};
  for (MixedSource& each : recipe.mixture) each.shuffle = true;
  const Mixture mixture = open(recipe);
  int64_t same = 0;
  for (int64_t i = 0; i < 50; ++i)
    same += mixture.sources()[0].index_in_file(i) == mixture.sources()[1].index_in_file(i);
  EXPECT_LT(same, 10);
}

TEST_F(MixtureTest, NamesTheEntryThatIsWrong) {
  DataOptions recipe;
  recipe.mixture = {source(1, 5, 1), source(2, 5, 1)};
  recipe.mixture[1].ignore_id = 2000;
  EXPECT_TRUE(has(message<InputError>([&] { open(recipe); }), "data.mixture[1].ignore_id is 2000"));
  recipe.mixture[1] = source(2, 5, 1);
  recipe.mixture[0].tokens = folder_.path() / "none.bin";
  recipe.mixture[0].source = "make none";
  EXPECT_TRUE(has(message<InputError>([&] { open(recipe); }),
                  "none.bin does not exist; according to the recipe it comes from: make none"));
}

}  // namespace
}  // namespace meshtrain
