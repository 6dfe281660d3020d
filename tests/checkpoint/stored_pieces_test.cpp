#include "runtime/training/checkpoint/stored_pieces.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(StoredPieces, AreWhatWasAdded) {
  const std::vector<std::pair<std::vector<int64_t>, Box>> tensors = {
      {{}, {}},
      {{7}, {{3}, {4}}},
      {{4294967295, 2}, {{4294967294, 1}, {1, 1}}},
      {{int64_t{1} << 40, 3}, {{(int64_t{1} << 39) + 5, 1}, {int64_t{1} << 38, 2}}},
  };
  for (const auto& [shape, box] : tensors) {
    StoredPieces pieces(shape);
    EXPECT_TRUE(pieces.empty());
    for (uint64_t i = 0; i < 100; ++i) pieces.push_back({static_cast<size_t>(i), box, ~uint64_t{0} - i});
    ASSERT_EQ(pieces.size(), 100u);
    size_t next = 0;
    for (const StoredPiece& piece : pieces) {
      EXPECT_EQ(piece.file, next);
      EXPECT_EQ(piece.box, box);
      EXPECT_EQ(piece.checksum, ~uint64_t{0} - next++);
    }
    EXPECT_EQ(next, 100u);
    EXPECT_EQ(pieces.first_row(99), shape.empty() ? 0 : box.start[0]);
    EXPECT_EQ(pieces.num_rows(99), shape.empty() ? 1 : box.size[0]);
    EXPECT_TRUE(pieces.intersects(99, box));
  }
  EXPECT_THROW(StoredPieces({2}).push_back({size_t{1} << 32, {{0}, {1}}, 0}), std::overflow_error);
}

TEST(StoredPieces, IntersectAsBoxesDo) {
  StoredPieces pieces({6, 6});
  const Box own{{2, 1}, {2, 3}};
  pieces.push_back({0, own, 0});
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t column = 0; column < 6; ++column) {
      for (int64_t size = 1; size <= 3; ++size) {
        const Box box{{row, column}, {size, 4 - size}};
        EXPECT_EQ(pieces.intersects(0, box), intersect(own, box).has_value()) << describe(box);
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
