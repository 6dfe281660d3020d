#include "context_parallel/blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/context_parallel/reference.h"

namespace meshtrain {
namespace {

using Chunk = SequenceLayout::Chunk;
using Kind = SequenceLayout::Kind;
using testing::document_ids;

constexpr int64_t kLength = 12;
const std::vector<std::vector<int64_t>> kStarts = {
    {}, {1}, {6}, {11}, {3, 6, 9}, {2, 5, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};

/// How often each query-key pair is computed, int64 [S, S].
at::Tensor pairs(const std::vector<Block>& blocks) {
  at::Tensor count = at::zeros({kLength, kLength}, at::kLong);
  for (const Block& block : blocks) {
    EXPECT_TRUE(!block.causal || block.num_queries == block.num_keys);
    at::Tensor all = at::ones({block.num_queries, block.num_keys}, at::kLong);
    const at::Tensor some = block.causal ? all.tril() : all;
    EXPECT_EQ(block.num_scores(), some.sum().item<int64_t>());
    count.narrow(0, block.query, block.num_queries).narrow(1, block.key, block.num_keys).add_(some);
  }
  return count;
}

/// 1 where a query of the whole sequence sees a key.
at::Tensor visible(const std::vector<int64_t>& starts) {
  const at::Tensor ids = document_ids(starts, kLength);
  return ids.unsqueeze(1).eq(ids.unsqueeze(0)).tril().to(at::kLong);
}

int64_t num_scores(const std::vector<RowPlan>& plans) {
  int64_t sum = 0;
  for (const RowPlan& plan : plans) {
    for (const Block& block : plan.diagonals) sum += plan.num_rows * block.num_scores();
    for (const Block& block : plan.rectangles) sum += plan.num_rows * block.num_scores();
  }
  return sum;
}

TEST(Blocks, CutCoversEveryVisiblePairOnce) {
  for (const std::vector<int64_t>& starts : kStarts) {
    const at::Tensor all = visible(starts);
    for (int64_t q0 = 0; q0 < kLength; ++q0) {
      for (int64_t q1 = q0 + 1; q1 <= kLength; ++q1) {
        for (int64_t k0 = 0; k0 < kLength; ++k0) {
          for (int64_t k1 = k0 + 1; k1 <= kLength; ++k1) {
            at::Tensor expected = at::zeros_like(all);
            expected.slice(0, q0, q1).slice(1, k0, k1).copy_(all.slice(0, q0, q1).slice(1, k0, k1));
            ASSERT_TRUE(pairs(cut({q0, q1 - q0}, {k0, k1 - k0}, starts)).equal(expected))
                << "queries [" << q0 << ", " << q1 << ") keys [" << k0 << ", " << k1 << ") documents "
                << at::IntArrayRef(starts);
          }
        }
      }
    }
  }
}

TEST(Blocks, CutMakesTheFewestBlocks) {
  EXPECT_EQ(cut({4, 4}, {0, 8}, {}), (std::vector<Block>{{4, 4, 0, 4, false}, {4, 4, 4, 4, true}}));
  EXPECT_EQ(cut({4, 4}, {0, 4}, {}), (std::vector<Block>{{4, 4, 0, 4, false}}));
  EXPECT_EQ(cut({4, 4}, {4, 4}, {}), (std::vector<Block>{{4, 4, 4, 4, true}}));
  EXPECT_EQ(cut({4, 4}, {8, 4}, {}), (std::vector<Block>{}));
  EXPECT_EQ(cut({4, 4}, {0, 8}, {6}),
            (std::vector<Block>{{4, 2, 0, 4, false}, {4, 2, 4, 2, true}, {6, 2, 6, 2, true}}));
}

TEST(Blocks, RanksTogetherComputeEveryVisiblePairOnce) {
  for (const std::vector<int64_t>& starts : kStarts) {
    for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
      for (const int ranks : {1, 2, 3, 6}) {
        at::Tensor count = at::zeros({kLength, kLength}, at::kLong);
        for (int rank = 0; rank < ranks; ++rank) {
          const SequenceLayout layout = SequenceLayout(kind, kLength, ranks, rank).with_documents({starts});
          const at::Tensor positions = layout.positions();
          const std::vector<RowPlan> plans = plan_rows(layout, 1);
          ASSERT_EQ(plans.size(), 1);
          std::vector<Block> blocks;
          at::Tensor queries_on_diagonals = at::zeros({layout.local_length()}, at::kLong);
          for (Block block : plans[0].diagonals) {
            queries_on_diagonals.narrow(0, block.query, block.num_queries).add_(1);
            EXPECT_EQ(positions[block.query].item<int64_t>(), block.key) << "keys of a diagonal are its queries";
            block.query = block.key;
            blocks.push_back(block);
          }
          EXPECT_TRUE(queries_on_diagonals.eq(1).all().item<bool>());
          for (Block block : plans[0].rectangles) {
            const auto same_queries = [&](const Block& diagonal) {
              return diagonal.query == block.query && diagonal.num_queries == block.num_queries;
            };
            EXPECT_EQ(std::count_if(plans[0].diagonals.begin(), plans[0].diagonals.end(), same_queries), 1);
            block.query = positions[block.query].item<int64_t>();
            blocks.push_back(block);
          }
          count.add_(pairs(blocks));
        }
        ASSERT_TRUE(count.equal(visible(starts))) << ranks << " ranks, documents " << at::IntArrayRef(starts);
      }
    }
  }
}

TEST(Blocks, ZigZagGivesEachRankTheSameWork) {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    const int64_t length = 10 * ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(num_scores(plan_rows(SequenceLayout(Kind::ZigZag, length, ranks, rank), 3)) * ranks,
                3 * length * (length + 1) / 2);
    }
    EXPECT_LT(num_scores(plan_rows(SequenceLayout(Kind::Contiguous, length, ranks, 0), 3)),
              num_scores(plan_rows(SequenceLayout(Kind::Contiguous, length, ranks, ranks - 1), 3)));
  }
}

TEST(Blocks, AdjoiningChunksAreOne) {
  const std::vector<RowPlan> plans = plan_rows(SequenceLayout(Kind::ZigZag, 16, 2, 1), 1);  // chunks 1 and 2 of 4
  ASSERT_EQ(plans.size(), 1);
  EXPECT_EQ(plans[0].diagonals, (std::vector<Block>{{0, 8, 4, 8, true}}));
  EXPECT_EQ(plans[0].rectangles, (std::vector<Block>{{0, 8, 0, 4, false}}));
}

TEST(Blocks, RowsWithTheSameDocumentsAreTakenTogether) {
  const SequenceLayout layout(Kind::Contiguous, 12, 2, 1);
  const std::vector<RowPlan> alike = plan_rows(layout, 5);
  ASSERT_EQ(alike.size(), 1);
  EXPECT_EQ(alike[0].num_rows, 5);

  const std::vector<RowPlan> plans = plan_rows(layout.with_documents({{4}, {4}, {8}, {}, {}}), 5);
  ASSERT_EQ(plans.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plans[i].first_row, (std::vector<int64_t>{0, 2, 3})[i]);
    EXPECT_EQ(plans[i].num_rows, (std::vector<int64_t>{2, 1, 2})[i]);
  }
  EXPECT_THROW(plan_rows(layout.with_documents({{4}, {4}}), 3), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
