#include "runtime/training/transformer/batch_growth.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshtrain {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;

/// 2 samples while fewer than 96 tokens were seen, 3 while fewer than 200, then 5.
BatchOptions growing() {
  return {.sequence_length = 16, .global_batch = 5, .phases = {{96, 2}, {200, 3}, {{}, 5}}};
}

TEST(BatchGrowth, AStepHasTheSizeOfTheTokensBeforeIt) {
  int64_t samples = 0;
  std::vector<int64_t> sizes;
  for (int step = 0; step < 8; ++step) {
    sizes.push_back(global_batch_after(growing(), samples));
    samples += sizes.back();
    EXPECT_EQ(samples_after(growing(), 0, step + 1, kMost), samples) << step;
  }
  // Steps begin at 0, 32, 64; 96, 144, 192; 240, 320 tokens.
  EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2, 3, 3, 3, 5, 5}));
  EXPECT_EQ(samples_after(growing(), 9, 4, kMost), 9 + 3 + 3 + 5 + 5) << "from the middle of a size";
  EXPECT_EQ(samples_after(growing(), 100, 2, kMost), 110) << "beyond all bounds";
  EXPECT_EQ(samples_after(growing(), 0, kMost, kMost), kMost);
}

TEST(BatchGrowth, IsDescribedWithItsSteps) {
  EXPECT_EQ(describe_growth(growing()),
            "global batch: 2 samples up to step 3 (96 tokens), 3 up to step 6 (240 tokens), then 5");
  EXPECT_EQ(describe_growth({.sequence_length = 16, .global_batch = 5}), "");
}

}  // namespace
}  // namespace meshtrain
