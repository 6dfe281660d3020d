#include "mesh/box.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace meshtrain {
namespace {

TEST(Box, CountsItsElements) {
  EXPECT_EQ((Box{{0, 4}, {3, 5}}).numel(), 15);
  EXPECT_EQ((Box{{0, 4}, {3, 0}}).numel(), 0);
  EXPECT_EQ((Box{}).numel(), 1);
}

TEST(Box, IntersectionIsWhatBothHold) {
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{2, 1}, {4, 2}}), (Box{{2, 1}, {2, 2}}));
  EXPECT_EQ(intersect({{2, 1}, {4, 2}}, {{0, 0}, {4, 4}}), (Box{{2, 1}, {2, 2}}));
  EXPECT_EQ(intersect({{1}, {3}}, {{1}, {3}}), (Box{{1}, {3}}));
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
}

TEST(Box, BoxesThatOnlyTouchShareNothing) {
  EXPECT_EQ(intersect({{0}, {4}}, {{4}, {4}}), std::nullopt);
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{0, 9}, {4, 1}}), std::nullopt);
  EXPECT_EQ(intersect({{0}, {4}}, {{2}, {0}}), std::nullopt);
}

TEST(Box, BoxesOfDifferentTensorsAreRefused) {
  EXPECT_THROW(intersect({{0}, {4}}, {{0, 0}, {4, 4}}), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
