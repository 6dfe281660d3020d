#include "runtime/program/forecast/packing.h"

#include <gtest/gtest.h>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

TimeForecast attention_of(double seconds) {
  TimeForecast time;
  time.attention = seconds;
  return time;
}

class Packing : public ::testing::Test {
 protected:
  Recipe recipe_with(const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {"model.vocab_size=256", "train.sequence_length=4", "train.global_batch=4",
                                    "train.micro_batch=1"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_recipe(source_folder() + "/recipes/quickstart.yaml", all, "");
  }
  static Decisions decisions_of(const Recipe& recipe, int64_t dp) {
    return resolve(recipe, MeshLayout::fit({{"dp", dp}}, recipe.parallel.order, dp));
  }
};

TEST_F(Packing, OneDocumentASampleChangesNothing) {
  const Recipe recipe = recipe_with({});
  TimeForecast time = attention_of(8);
  PackedSamples(recipe).apply(time, recipe, decisions_of(recipe, 2));
  EXPECT_EQ(time.attention, 8);
  EXPECT_EQ(time.imbalance, 0);
}

TEST_F(Packing, RanksWaitForTheOneWithMostPairs) {
  const PackedSamples samples({1, 0.5, 0.5, 0.5});  // of a step: ranks have {1, 0.5} and {0.5, 0.5}
  Recipe recipe = recipe_with({"parallel.fsdp.mode=no_shard"});
  TimeForecast time = attention_of(8);
  samples.apply(time, recipe, decisions_of(recipe, 2));
  EXPECT_DOUBLE_EQ(time.attention, 8 * 2.5 / 4);
  EXPECT_DOUBLE_EQ(time.imbalance, 8 * (1.5 - 1.25) / 2);
  EXPECT_DOUBLE_EQ(time.total(), time.attention + time.imbalance);
  // One rank waits for nobody.
  time = attention_of(8);
  samples.apply(time, recipe, decisions_of(recipe, 1));
  EXPECT_DOUBLE_EQ(time.imbalance, 0);
}

TEST_F(Packing, WhereUnitsAreGatheredRanksWaitInEachMicroBatch) {
  const PackedSamples samples({1, 0.5, 0.5, 1});  // {1, 0.5} and {0.5, 1}: equal in a step
  for (const auto& [mode, waits] : {std::pair("no_shard", false), std::pair("full_shard", true)}) {
    const Recipe recipe = recipe_with({std::string("parallel.fsdp.mode=") + mode});
    TimeForecast time = attention_of(8);
    samples.apply(time, recipe, decisions_of(recipe, 2));
    EXPECT_DOUBLE_EQ(time.imbalance, waits ? 8 * 0.25 : 0) << mode;
  }
}

TEST_F(Packing, IsReadFromTheData) {
  const ScratchFolder folder;
  const std::string tokens = folder.path() / "tokens.bin";
  // Samples of 4 tokens: one document, and two of 2 tokens (0 ends each).
  const std::string bytes = {1, 1, 1, 0, 1, 0, 1, 0, 1};
  write_file(tokens, bytes);
  const Recipe recipe = recipe_with(
      {"data.tokens=" + tokens, "data.dtype=uint8", "data.layout=stream", "data.documents=0", "train.global_batch=2"});
  TimeForecast time = attention_of(10);
  PackedSamples(recipe).apply(time, recipe, decisions_of(recipe, 1));
  EXPECT_DOUBLE_EQ(time.attention, 10 * (1 + 6.0 / 10) / 2) << "3 of 10 pairs in each of the two";
}

}  // namespace
}  // namespace meshtrain::testing
