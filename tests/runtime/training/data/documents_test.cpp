#include "runtime/training/data/documents.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "runtime/training/data/samples.h"

namespace meshtrain {
namespace {

using Starts = std::vector<int64_t>;

constexpr int64_t kSeparator = 9;

std::vector<int64_t> found(const std::vector<int64_t>& tokens) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  return divide_sample(find_documents(tokens.data(), length, kSeparator), length, nullptr);
}

void expect_positions(const DocumentStarts& starts, const std::vector<std::vector<int64_t>>& wanted) {
  const at::Tensor positions = document_positions(starts, static_cast<int64_t>(wanted[0].size()));
  ASSERT_EQ(positions.size(0), static_cast<int64_t>(wanted.size()));
  for (size_t row = 0; row < wanted.size(); ++row) {
    EXPECT_TRUE(at::equal(positions[static_cast<int64_t>(row)], at::tensor(wanted[row], at::kLong))) << row;
  }
}

TEST(Documents, BeginAfterEachSeparator) {
  EXPECT_EQ(found({1, 2, kSeparator, 3, kSeparator, 4}), (Starts{3, 5}));
  EXPECT_EQ(found({kSeparator, 1, 2, 3, 4, 5}), (Starts{1})) << "the first token is a document";
  EXPECT_EQ(found({1, kSeparator, kSeparator, kSeparator, 2, 3}), (Starts{2, 3, 4})) << "documents of one token";
  EXPECT_EQ(found({kSeparator, kSeparator, kSeparator}), (Starts{1, 2}));
}

TEST(Documents, ASequenceWithoutInnerSeparatorIsOne) {
  EXPECT_TRUE(found({1, 2, 3}).empty());
  EXPECT_TRUE(found({1, 2, kSeparator}).empty()) << "nothing begins after the last token";
  EXPECT_TRUE(found({kSeparator}).empty());
}

TEST(Documents, LabelsAcrossABoundaryStopCounting) {
  std::vector<int64_t> labels = {2, 3, 4, 5};
  EXPECT_EQ(divide_sample({1, 3, 4}, 4, labels.data()), (Starts{1, 3}));
  EXPECT_EQ(labels, (std::vector<int64_t>{kIgnoredLabel, 3, kIgnoredLabel, kIgnoredLabel}));
}

TEST(Documents, PositionsBeginAnewInEach) {
  expect_positions({{3, 5}}, {{0, 1, 2, 0, 1, 0}});
  expect_positions({{1}, {}, {2, 3, 4}}, {{0, 0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}, {0, 1, 0, 0, 0, 1}});
  expect_positions({{1, 2}}, {{0, 0, 0}});
}

}  // namespace
}  // namespace meshtrain
