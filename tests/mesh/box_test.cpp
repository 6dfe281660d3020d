#include "mesh/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "mesh/device/aten.h"

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

/// Returns the offsets of the elements of `box` in a row-major tensor of `shape`, in order.
std::vector<int64_t> elements_of(const Box& box, const std::vector<int64_t>& shape) {
  at::Tensor numbers = at::arange(c10::multiply_integers(shape), at::kLong).view(shape);
  numbers = part(numbers, box).contiguous();
  return {numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel()};
}

TEST(Box, ARangeOfElementsIsAFewBoxes) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {4, 3}, {1, 5}, {5, 1}, {3, 2, 4}, {2, 1, 3, 2}}) {
    const int64_t numel = c10::multiply_integers(shape);
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        const std::vector<Box> boxes = boxes_of(shape, begin, end);
        EXPECT_LE(boxes.size(), 2 * shape.size() - 1);
        std::vector<int64_t> elements, expected(static_cast<size_t>(end - begin));
        for (const Box& box : boxes) {
          const std::vector<int64_t> inside = elements_of(box, shape);
          EXPECT_FALSE(inside.empty());
          elements.insert(elements.end(), inside.begin(), inside.end());
        }
        std::iota(expected.begin(), expected.end(), begin);
        EXPECT_EQ(elements, expected) << begin << " to " << end;
      }
    }
  }
  EXPECT_EQ(boxes_of({4, 3}, 2, 10), (std::vector<Box>{{{0, 2}, {1, 1}}, {{1, 0}, {2, 3}}, {{3, 0}, {1, 1}}}));
  EXPECT_EQ(boxes_of({4, 3}, 3, 9), (std::vector<Box>{{{1, 0}, {2, 3}}}));
  EXPECT_EQ(boxes_of({}, 0, 1), std::vector<Box>{Box{}});
  EXPECT_TRUE(boxes_of({}, 0, 0).empty());
}

TEST(Box, IsDescribedByItsBounds) {
  EXPECT_EQ(describe(Box{{2, 0}, {1, 16}}), "[2:3, 0:16]");
}

}  // namespace
}  // namespace meshtrain
