#include "pipeline_parallel/stage_balance.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace meshtrain {
namespace {

using Counts = std::vector<int64_t>;

Counts equal_layers(size_t layers, int64_t stages, double first = 0, double last = 0) {
  return balance_stages(std::vector<double>(layers, 1), stages, first, last);
}

TEST(StageBalance, WhatIsLeftOverGoesToEarlierStages) {
  EXPECT_EQ(equal_layers(8, 4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(equal_layers(7, 4), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(equal_layers(9, 4), (Counts{3, 2, 2, 2}));
  EXPECT_EQ(equal_layers(4, 4), (Counts{1, 1, 1, 1}));
  EXPECT_EQ(equal_layers(5, 1), (Counts{5}));
}

TEST(StageBalance, TheHeadCountsInTheLastStage) {
  EXPECT_EQ(equal_layers(8, 4, 0, 2), (Counts{3, 2, 2, 1}));
  EXPECT_EQ(equal_layers(8, 4, 0, 9), (Counts{3, 2, 2, 1})) << "the head alone decides, the others are even";
  EXPECT_EQ(equal_layers(8, 2, 3, 0), (Counts{3, 5})) << "6, 5 as 5, 6, but the costs of 2, 6 are less even";
  EXPECT_EQ(balance_stages({1, 1, 4, 1, 1}, 2, 0, 0), (Counts{3, 2}));
}

TEST(StageBalance, MoreStagesThanLayersAreRefused) {
  EXPECT_THROW(equal_layers(3, 4), std::invalid_argument);
  EXPECT_THROW(equal_layers(3, 0), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
