#include "context_parallel/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/context_parallel/reference.h"

namespace meshtrain {
namespace {

using Chunk = SequenceLayout::Chunk;
using Kind = SequenceLayout::Kind;
using testing::visible;

constexpr int64_t kLength = 12;
constexpr int64_t kWindows[] = {0, 1, 2, 3, 5, 11};
const std::vector<std::vector<int64_t>> kStarts = {
    {}, {1}, {6}, {11}, {3, 6, 9}, {2, 5, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};

/// How often each query-key pair is computed, by query and key.
using Counts = std::vector<int64_t>;

Counts counts_of(const at::Tensor& pairs) {
  return Counts(pairs.const_data_ptr<int64_t>(), pairs.const_data_ptr<int64_t>() + pairs.numel());
}

/// Returns true when query t and key u of a block count.
bool counts(const ScoreBlock& block, int64_t t, int64_t u) {
  if (block.pairs == Pairs::AntiCausal) return u >= t;
  return block.pairs == Pairs::All || (u <= t && (block.window == 0 || u > t - block.window));
}

/// Calls add(query, key) for every pair of one row of a block that counts. Expects each query to have one.
template <class Add>
void for_pairs(const ScoreBlock& block, const Add& add) {
  EXPECT_TRUE(block.pairs == Pairs::All || block.num_queries == block.num_keys);
  EXPECT_TRUE(block.window == 0 || (block.causal() && block.window < block.num_keys));
  int64_t sum = 0;
  for (int64_t tile = 0; tile < block.num_tiles; ++tile) {
    for (int64_t t = 0; t < block.num_queries; ++t) {
      const int64_t before = sum;
      for (int64_t u = 0; u < block.num_keys; ++u) {
        if (!counts(block, t, u)) continue;
        add(block.query + tile * block.stride + t, block.key + tile * block.stride + u);
        ++sum;
      }
      EXPECT_GT(sum, before) << "a query without keys";
    }
  }
  EXPECT_EQ(block.num_scores(), sum * block.num_rows);
}

Counts pairs(const std::vector<ScoreBlock>& blocks) {
  Counts count(kLength * kLength);
  for (const ScoreBlock& block : blocks) {
    for_pairs(block, [&](int64_t query, int64_t key) { ++count[query * kLength + key]; });
  }
  return count;
}

int64_t num_scores(const std::vector<ScoreBlock>& blocks) {
  int64_t sum = 0;
  for (const ScoreBlock& block : blocks) sum += block.num_scores();
  return sum;
}

/// Returns everything that a rank computes while the keys of all ranks pass it.
std::vector<std::vector<ScoreBlock>> ring_blocks(const SequenceLayout& layout, int64_t batch, int64_t window = 0) {
  std::vector<std::vector<ScoreBlock>> hops;
  for (int source = 0; source < layout.ranks(); ++source) hops.push_back(hop_blocks(layout, batch, source, window));
  return hops;
}

/// Adds a block in local order, whose queries and keys have these positions, to `count`.
void add_block(Counts& count, const ScoreBlock& block, const at::Tensor& queries, const at::Tensor& keys) {
  const int64_t *of_query = queries.const_data_ptr<int64_t>(), *of_key = keys.const_data_ptr<int64_t>();
  for_pairs(block, [&](int64_t query, int64_t key) { ++count[of_query[query] * kLength + of_key[key]]; });
}

/// Returns all combinations.
std::vector<std::pair<std::vector<int64_t>, int64_t>> documents_and_windows() {
  std::vector<std::pair<std::vector<int64_t>, int64_t>> all;
  for (const std::vector<int64_t>& starts : kStarts) {
    for (const int64_t window : kWindows) all.emplace_back(starts, window);
  }
  return all;
}

TEST(Blocks, CutCoversEveryVisiblePairOnce) {
  for (const auto& [starts, window] : documents_and_windows()) {
    const Counts all = counts_of(visible(starts, kLength, window));
    for (int64_t q0 = 0; q0 < kLength; ++q0) {
      for (int64_t q1 = q0 + 1; q1 <= kLength; ++q1) {
        for (int64_t k0 = 0; k0 < kLength; ++k0) {
          for (int64_t k1 = k0 + 1; k1 <= kLength; ++k1) {
            Counts expected(all.size());
            for (int64_t i = q0; i < q1; ++i) {
              for (int64_t j = k0; j < k1; ++j) expected[i * kLength + j] = all[i * kLength + j];
            }
            const std::vector<ScoreBlock> blocks = cut({q0, q1 - q0}, {k0, k1 - k0}, starts, window);
            for (const std::vector<ScoreBlock>& each : {blocks, tiled(blocks)}) {
              ASSERT_EQ(pairs(each), expected) << "queries [" << q0 << ", " << q1 << ") keys [" << k0 << ", " << k1
                                               << ") documents " << at::IntArrayRef(starts) << " window " << window;
            }
            EXPECT_TRUE(std::ranges::all_of(tiled(blocks), [](const auto& block) { return block.window == 0; }));
          }
        }
      }
    }
  }
}

TEST(Blocks, CutMakesTheFewestBlocks) {
  EXPECT_EQ(cut({4, 4}, {0, 8}, {}, 0),
            (std::vector<ScoreBlock>{{4, 4, 0, 4, Pairs::All}, {4, 4, 4, 4, Pairs::Causal}}));
  EXPECT_EQ(cut({4, 4}, {0, 4}, {}, 0), (std::vector<ScoreBlock>{{4, 4, 0, 4, Pairs::All}}));
  EXPECT_EQ(cut({4, 4}, {4, 4}, {}, 0), (std::vector<ScoreBlock>{{4, 4, 4, 4, Pairs::Causal}}));
  EXPECT_EQ(cut({4, 4}, {8, 4}, {}, 0), (std::vector<ScoreBlock>{}));
  EXPECT_EQ(
      cut({4, 4}, {0, 8}, {6}, 0),
      (std::vector<ScoreBlock>{{4, 2, 0, 4, Pairs::All}, {4, 2, 4, 2, Pairs::Causal}, {6, 2, 6, 2, Pairs::Causal}}));
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

/// Returns the positions of a source's keys that a rank receives: with a window, those inside.
at::Tensor received(const at::Tensor& positions, const SequenceLayout& layout, int source, int64_t window) {
  if (window == 0 || source == layout.rank()) return positions;
  std::vector<at::Tensor> parts = {positions.narrow(0, 0, 0)};
  for (const Chunk& chunk : keys_within(layout, layout.rank(), source, window)) {
    parts.push_back(positions.narrow(0, chunk.start, chunk.size));
  }
  return at::cat(parts);
}

void expect_diagonals_hold_each_query_once(const std::vector<ScoreBlock>& blocks, int64_t length) {
  at::Tensor seen = at::zeros({length}, at::kLong);
  for (const ScoreBlock& block : blocks) {
    if (!block.causal()) continue;
    EXPECT_EQ(block.num_tiles, 1);
    EXPECT_EQ(block.query, block.key) << "keys of a diagonal are its queries";
    seen.narrow(0, block.query, block.num_queries).add_(1);
  }
  EXPECT_TRUE(seen.eq(1).all().item<bool>());
}

TEST(Blocks, BlocksOfAllKeysComputeEveryVisiblePairOnce) {
  for_all_layouts([](const std::vector<int64_t>& starts, const std::vector<SequenceLayout>& layouts) {
    Counts count(kLength * kLength);
    for (const SequenceLayout& layout : layouts) {
      const at::Tensor positions = layout.positions(), all = at::arange(kLength);
      const ScoreBlocks calls = all_keys_blocks(layout, 1);
      expect_diagonals_hold_each_query_once(calls.diagonals, layout.local_length());
      for (const ScoreBlock& block : calls.diagonals) add_block(count, block, positions, positions);
      for (const ScoreBlock& block : calls.rectangles) {
        EXPECT_FALSE(block.causal());
        add_block(count, block, positions, all);
      }
    }
    ASSERT_EQ(count, counts_of(visible(starts, kLength, 0)));
  });
}

TEST(Blocks, HopsComputeEveryVisiblePairOnce) {
  for_all_layouts([](const std::vector<int64_t>& starts, const std::vector<SequenceLayout>& layouts) {
    for (const int64_t window : kWindows) {
      Counts count(kLength * kLength);
      for (const SequenceLayout& layout : layouts) {
        const std::vector<std::vector<ScoreBlock>> hops = ring_blocks(layout, 1, window);
        for (size_t source = 0; source < hops.size(); ++source) {
          const bool own = static_cast<int>(source) == layout.rank();
          if (own) expect_diagonals_hold_each_query_once(hops[source], layout.local_length());
          const at::Tensor keys = received(layouts[source].positions(), layout, static_cast<int>(source), window);
          bool rectangles = false;
          for (const ScoreBlock& block : hops[source]) {
            EXPECT_TRUE(own || !block.causal());
            EXPECT_FALSE(rectangles && block.causal()) << "diagonals come first";
            rectangles = rectangles || !block.causal();
            add_block(count, block, layout.positions(), keys);
          }
        }
      }
      ASSERT_EQ(count, counts_of(visible(starts, kLength, window))) << "window " << window;
    }
  });
}

TEST(Blocks, OnlyKeysInsideTheWindowTravel) {
  for_all_layouts([](const std::vector<int64_t>& starts, const std::vector<SequenceLayout>& layouts) {
    if (!starts.empty()) return;
    const int ranks = static_cast<int>(layouts.size());
    for (const int64_t window : kWindows) {
      if (window == 0) continue;
      std::vector<int> hops;
      for (int hop = 1; hop < ranks; ++hop) {
        bool needed = false;
        for (int rank = 0; rank < ranks; ++rank) {
          const SequenceLayout &receiver = layouts[rank], &source = layouts[(rank + ranks - hop) % ranks];
          const at::Tensor seen = visible({}, kLength, window).index_select(0, receiver.positions()).sum(0).gt(0);
          const at::Tensor positions = source.positions(), wanted = positions.index({seen.index_select(0, positions)});
          EXPECT_TRUE(received(positions, receiver, source.rank(), window).equal(wanted)) << "window " << window;
          needed = needed || wanted.numel() > 0;
        }
        if (needed) hops.push_back(hop);
      }
      EXPECT_EQ(hops_within(layouts[0], window), hops) << "window " << window;
    }
  });
}

// A window of 16 in 4,096 positions is no 512 calls.
TEST(Blocks, EqualTilesAreOneBlock) {
  const auto blocks = [](int64_t length, int64_t rows) {
    return tiled({{0, length, 0, length, Pairs::Causal, 0, rows, /*window=*/16}});
  };
  EXPECT_EQ(blocks(4096, 1), (std::vector<ScoreBlock>{{0, 16, 0, 16, Pairs::Causal, 0, 1, 0, 256, 16},
                                                      {16, 15, 1, 15, Pairs::AntiCausal, 0, 1, 0, 255, 16}}));
  EXPECT_EQ(blocks(4099, 3).size(), 3 + 1 + 3 + 2u) << "a call for each row, and three for the last tile";
  EXPECT_EQ(blocks(32, 100), (std::vector<ScoreBlock>{{0, 16, 0, 16, Pairs::Causal, 0, 100},
                                                      {16, 16, 16, 16, Pairs::Causal, 0, 100},
                                                      {16, 15, 1, 15, Pairs::AntiCausal, 0, 100}}));
}

TEST(Blocks, ZigZagGivesEachRankTheSameWorkInEveryHop) {
  for (const int ranks : {2, 3, 4, 8, 64}) {
    const int64_t length = 10 * ranks, half = length / (2 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const SequenceLayout layout(Kind::ZigZag, length, ranks, rank);
      const ScoreBlocks calls = all_keys_blocks(layout, 3);
      EXPECT_EQ((num_scores(calls.diagonals) + num_scores(calls.rectangles)) * ranks, 3 * length * (length + 1) / 2);
      const std::vector<std::vector<ScoreBlock>> hops = ring_blocks(layout, 3);
      for (int source = 0; source < ranks; ++source) {
        EXPECT_EQ(num_scores(hops[source]), 3 * (2 * half * half + (source == rank ? half : 0)))
            << "ranks " << rank << " and " << source;
        EXPECT_TRUE(source == rank || hops[source].size() == 1) << "one kernel call a hop";
      }
    }
    const auto contiguous = [&](int rank) {
      return num_scores(all_keys_blocks(SequenceLayout(Kind::Contiguous, length, ranks, rank), 3).rectangles);
    };
    EXPECT_LT(contiguous(0), contiguous(ranks - 1));
  }
}

TEST(Blocks, ContiguousHopsFromLaterRanksAreSkipped) {
  for (int source = 0; source < 4; ++source) {
    EXPECT_EQ(hop_blocks(SequenceLayout(Kind::Contiguous, 16, 4, 1), 1, source, 0).empty(), source > 1);
  }
}

TEST(Blocks, AdjoiningChunksAreOne) {
  const SequenceLayout layout(Kind::ZigZag, 16, 2, 1);  // chunks 1 and 2 of 4
  const ScoreBlocks calls = all_keys_blocks(layout, 1);
  EXPECT_EQ(calls.diagonals, (std::vector<ScoreBlock>{{0, 8, 0, 8, Pairs::Causal}}));
  EXPECT_EQ(calls.rectangles, (std::vector<ScoreBlock>{{0, 8, 0, 4, Pairs::All}}));
  EXPECT_EQ(hop_blocks(layout, 1, 1, 0), (std::vector<ScoreBlock>{{0, 8, 0, 8, Pairs::Causal}}));
  EXPECT_EQ(hop_blocks(layout, 1, 0, 0), (std::vector<ScoreBlock>{{0, 8, 0, 4, Pairs::All}}));
  EXPECT_EQ(hop_blocks(SequenceLayout(Kind::ZigZag, 16, 2, 0), 1, 1, 0),
            (std::vector<ScoreBlock>{{4, 4, 0, 8, Pairs::All}}));
}

TEST(Blocks, RowsWithTheSameDocumentsAreTakenTogether) {
  const SequenceLayout layout(Kind::Contiguous, 12, 2, 1);
  EXPECT_EQ(all_keys_blocks(layout, 5).diagonals, (std::vector<ScoreBlock>{{0, 6, 0, 6, Pairs::Causal, 0, 5}}));
  const SequenceLayout documents = layout.with_documents({{4}, {4}, {8}, {}, {}});
  const std::vector<ScoreBlock> diagonals = {{0, 6, 0, 6, Pairs::Causal, 0, 2},
                                             {0, 2, 0, 2, Pairs::Causal, 2, 1},
                                             {2, 4, 2, 4, Pairs::Causal, 2, 1},
                                             {0, 6, 0, 6, Pairs::Causal, 3, 2}};
  EXPECT_EQ(all_keys_blocks(documents, 5).diagonals, diagonals);
  EXPECT_EQ(hop_blocks(documents, 5, 1, 0), diagonals);
  EXPECT_THROW(all_keys_blocks(layout.with_documents({{4}, {4}}), 3), std::invalid_argument);
  EXPECT_THROW(hop_blocks(layout.with_documents({{4}, {4}}), 3, 0, 0), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
