#include "runtime/data/documents.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshtrain {
namespace {

constexpr int64_t kEnd = 9;  // the separator

DocumentStarts found(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> tokens;
  for (const std::vector<int64_t>& row : rows) tokens.push_back(at::tensor(row, at::kLong));
  return find_documents(at::stack(tokens), kEnd);
}

void expect_positions(const DocumentStarts& starts, const std::vector<std::vector<int64_t>>& wanted) {
  const at::Tensor positions = document_positions(starts, static_cast<int64_t>(wanted[0].size()));
  ASSERT_EQ(positions.size(0), static_cast<int64_t>(wanted.size()));
  for (size_t row = 0; row < wanted.size(); ++row) {
    EXPECT_TRUE(at::equal(positions[static_cast<int64_t>(row)], at::tensor(wanted[row], at::kLong))) << row;
  }
}

TEST(Documents, BeginBehindEachSeparator) {
  EXPECT_EQ(found({{1, 2, kEnd, 3, kEnd, 4}}), (DocumentStarts{{3, 5}}));
  EXPECT_EQ(found({{kEnd, 1, 2, 3, 4, 5}}), (DocumentStarts{{1}})) << "the first token is a document";
  EXPECT_EQ(found({{1, kEnd, kEnd, kEnd, 2, 3}}), (DocumentStarts{{2, 3, 4}})) << "documents of one token";
  EXPECT_EQ(found({{kEnd, kEnd, kEnd}}), (DocumentStarts{{1, 2}}));
}

TEST(Documents, ASequenceWithoutInnerSeparatorIsOne) {
  EXPECT_TRUE(found({{1, 2, 3}, {4, 5, 6}}).empty());
  EXPECT_TRUE(found({{1, 2, kEnd}}).empty()) << "nothing begins behind the last token";
  EXPECT_TRUE(found({{kEnd}}).empty());
  EXPECT_EQ(found({{1, 2, kEnd}, {1, kEnd, 2}, {1, 2, 3}}), (DocumentStarts{{}, {2}, {}})) << "a row each";
}

TEST(Documents, PositionsBeginAnewInEach) {
  expect_positions({{3, 5}}, {{0, 1, 2, 0, 1, 0}});
  expect_positions({{1}, {}, {2, 3, 4}}, {{0, 0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}, {0, 1, 0, 0, 0, 1}});
  expect_positions({{1, 2}}, {{0, 0, 0}});
}

}  // namespace
}  // namespace meshtrain
