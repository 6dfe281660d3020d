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

/// Returns how often each query-key pair is computed, int64 [S, S].
at::Tensor pairs(const std::vector<ScoreBlock>& blocks) {
  at::Tensor count = at::zeros({kLength, kLength}, at::kLong);
  for (const ScoreBlock& block : blocks) {
    EXPECT_TRUE(!block.causal || block.num_queries == block.num_keys);
    at::Tensor all = at::ones({block.num_queries, block.num_keys}, at::kLong);
    const at::Tensor some = block.causal ? all.tril() : all;
    EXPECT_EQ(block.num_scores(), some.sum().item<int64_t>());
    count.narrow(0, block.query, block.num_queries).narrow(1, block.key, block.num_keys).add_(some);
  }
  return count;
}

/// Returns 1 where a query of the complete sequence sees a key.
at::Tensor visible(const std::vector<int64_t>& starts) {
  const at::Tensor ids = document_ids(starts, kLength);
  return ids.unsqueeze(1).eq(ids.unsqueeze(0)).tril().to(at::kLong);
}

int64_t num_scores(const std::vector<ScoreBlock>& blocks) {
  int64_t sum = 0;
  for (const ScoreBlock& block : blocks) sum += block.num_scores();
  return sum;
}

/// Returns everything that a rank computes while the keys of all ranks pass it.
std::vector<std::vector<ScoreBlock>> plan_ring(const SequenceLayout& layout, int64_t batch) {
  std::vector<std::vector<ScoreBlock>> hops;
  for (int source = 0; source < layout.ranks(); ++source) hops.push_back(plan_hop(layout, batch, source));
  return hops;
}

/// Adds a block in local order, whose queries and keys have these positions, to `count` [S, S].
void add_block(const at::Tensor& count, const ScoreBlock& block, const at::Tensor& queries, const at::Tensor& keys) {
  const at::Tensor all = at::ones({block.num_queries, block.num_keys}, at::kLong);
  count.index_put_({queries.narrow(0, block.query, block.num_queries).unsqueeze(1),
                    keys.narrow(0, block.key, block.num_keys).unsqueeze(0)},
                   block.causal ? all.tril() : all, /*accumulate=*/true);
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
  EXPECT_EQ(cut({4, 4}, {0, 8}, {}), (std::vector<ScoreBlock>{{4, 4, 0, 4, false}, {4, 4, 4, 4, true}}));
  EXPECT_EQ(cut({4, 4}, {0, 4}, {}), (std::vector<ScoreBlock>{{4, 4, 0, 4, false}}));
  EXPECT_EQ(cut({4, 4}, {4, 4}, {}), (std::vector<ScoreBlock>{{4, 4, 4, 4, true}}));
  EXPECT_EQ(cut({4, 4}, {8, 4}, {}), (std::vector<ScoreBlock>{}));
  EXPECT_EQ(cut({4, 4}, {0, 8}, {6}),
            (std::vector<ScoreBlock>{{4, 2, 0, 4, false}, {4, 2, 4, 2, true}, {6, 2, 6, 2, true}}));
}

/// Runs `check(starts, ranks, layouts)` for all kinds, documents and numbers of ranks.
template <class Check>
void for_all_layouts(const Check& check) {
  for (const std::vector<int64_t>& starts : kStarts) {
    for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
      for (const int ranks : {1, 2, 3, 6}) {
        std::vector<SequenceLayout> layouts;
        for (int rank = 0; rank < ranks; ++rank) {
          layouts.push_back(SequenceLayout(kind, kLength, ranks, rank).with_documents({starts}));
        }
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, documents " << at::IntArrayRef(starts));
        check(starts, layouts);
      }
    }
  }
}

void expect_diagonals_hold_each_query_once(const std::vector<ScoreBlock>& blocks, int64_t length) {
  at::Tensor seen = at::zeros({length}, at::kLong);
  for (const ScoreBlock& block : blocks) {
    if (!block.causal) continue;
    EXPECT_EQ(block.query, block.key) << "keys of a diagonal are its queries";
    seen.narrow(0, block.query, block.num_queries).add_(1);
  }
  EXPECT_TRUE(seen.eq(1).all().item<bool>());
}

TEST(Blocks, WholePlansComputeEveryVisiblePairOnce) {
  for_all_layouts([](const std::vector<int64_t>& starts, const std::vector<SequenceLayout>& layouts) {
    at::Tensor count = at::zeros({kLength, kLength}, at::kLong);
    for (const SequenceLayout& layout : layouts) {
      const at::Tensor positions = layout.positions(), all = at::arange(kLength);
      const WholePlan plan = plan_whole(layout, 1);
      expect_diagonals_hold_each_query_once(plan.diagonals, layout.local_length());
      for (const ScoreBlock& block : plan.diagonals) add_block(count, block, positions, positions);
      for (const ScoreBlock& block : plan.rectangles) {
        EXPECT_FALSE(block.causal);
        add_block(count, block, positions, all);
      }
    }
    ASSERT_TRUE(count.equal(visible(starts)));
  });
}

TEST(Blocks, HopsComputeEveryVisiblePairOnce) {
  for_all_layouts([](const std::vector<int64_t>& starts, const std::vector<SequenceLayout>& layouts) {
    at::Tensor count = at::zeros({kLength, kLength}, at::kLong);
    for (const SequenceLayout& layout : layouts) {
      const std::vector<std::vector<ScoreBlock>> hops = plan_ring(layout, 1);
      for (size_t source = 0; source < hops.size(); ++source) {
        const bool own = static_cast<int>(source) == layout.rank();
        if (own) expect_diagonals_hold_each_query_once(hops[source], layout.local_length());
        bool rectangles = false;
        for (const ScoreBlock& block : hops[source]) {
          EXPECT_TRUE(own || !block.causal);
          EXPECT_FALSE(rectangles && block.causal) << "diagonals come first";
          rectangles = rectangles || !block.causal;
          add_block(count, block, layout.positions(), layouts[source].positions());
        }
      }
    }
    ASSERT_TRUE(count.equal(visible(starts)));
  });
}

TEST(Blocks, ZigZagGivesEachRankTheSameWorkInEveryHop) {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    const int64_t length = 10 * ranks, half = length / (2 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const SequenceLayout layout(Kind::ZigZag, length, ranks, rank);
      const WholePlan plan = plan_whole(layout, 3);
      EXPECT_EQ((num_scores(plan.diagonals) + num_scores(plan.rectangles)) * ranks, 3 * length * (length + 1) / 2);
      const std::vector<std::vector<ScoreBlock>> hops = plan_ring(layout, 3);
      for (int source = 0; source < ranks; ++source) {
        EXPECT_EQ(num_scores(hops[source]), 3 * (2 * half * half + (source == rank ? half : 0)))
            << "ranks " << rank << " and " << source;
        EXPECT_TRUE(source == rank || hops[source].size() == 1) << "one kernel call a hop";
      }
    }
    const auto contiguous = [&](int rank) {
      return num_scores(plan_whole(SequenceLayout(Kind::Contiguous, length, ranks, rank), 3).rectangles);
    };
    EXPECT_LT(contiguous(0), contiguous(ranks - 1));
  }
}

TEST(Blocks, ContiguousHopsFromLaterRanksAreSkipped) {
  for (int source = 0; source < 4; ++source) {
    EXPECT_EQ(plan_hop(SequenceLayout(Kind::Contiguous, 16, 4, 1), 1, source).empty(), source > 1);
  }
}

TEST(Blocks, AdjoiningChunksAreOne) {
  const SequenceLayout layout(Kind::ZigZag, 16, 2, 1);  // chunks 1 and 2 of 4
  const WholePlan plan = plan_whole(layout, 1);
  EXPECT_EQ(plan.diagonals, (std::vector<ScoreBlock>{{0, 8, 0, 8, true}}));
  EXPECT_EQ(plan.rectangles, (std::vector<ScoreBlock>{{0, 8, 0, 4, false}}));
  EXPECT_EQ(plan_hop(layout, 1, 1), (std::vector<ScoreBlock>{{0, 8, 0, 8, true}}));
  EXPECT_EQ(plan_hop(layout, 1, 0), (std::vector<ScoreBlock>{{0, 8, 0, 4, false}}));
  EXPECT_EQ(plan_hop(SequenceLayout(Kind::ZigZag, 16, 2, 0), 1, 1), (std::vector<ScoreBlock>{{4, 4, 0, 8, false}}));
}

TEST(Blocks, RowsWithTheSameDocumentsAreTakenTogether) {
  const SequenceLayout layout(Kind::Contiguous, 12, 2, 1);
  EXPECT_EQ(plan_whole(layout, 5).diagonals, (std::vector<ScoreBlock>{{0, 6, 0, 6, true, 0, 5}}));
  const SequenceLayout documents = layout.with_documents({{4}, {4}, {8}, {}, {}});
  const std::vector<ScoreBlock> diagonals = {
      {0, 6, 0, 6, true, 0, 2}, {0, 2, 0, 2, true, 2, 1}, {2, 4, 2, 4, true, 2, 1}, {0, 6, 0, 6, true, 3, 2}};
  EXPECT_EQ(plan_whole(documents, 5).diagonals, diagonals);
  EXPECT_EQ(plan_hop(documents, 5, 1), diagonals);
  EXPECT_THROW(plan_whole(layout.with_documents({{4}, {4}}), 3), std::invalid_argument);
  EXPECT_THROW(plan_hop(layout.with_documents({{4}, {4}}), 3, 0), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
