#include "context_parallel/attention_plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "tests/context_parallel/reference.h"

namespace meshtrain {
namespace {

using Kind = SequenceLayout::Kind;
using testing::Documents;

constexpr int64_t kPlannedLength = 48;  // six positions in each chunk of four zig-zag ranks
const PassOptions kPacked = {.packing = at::Device(at::kCPU)}, kSeparate = {};

/// Returns a batch of four: rows with the same documents, one undivided row, one with documents of one token.
Documents documents() {
  std::vector<int64_t> tokens(kPlannedLength - 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  return {{1, 13, 14, 40}, {1, 13, 14, 40}, {}, tokens};
}

/// Returns one block for each row; joined rows are separated.
std::vector<ScoreBlock> by_row(const std::vector<ScoreBlock>& blocks) {
  std::vector<ScoreBlock> rows;
  for (ScoreBlock block : blocks) {
    const int64_t first = block.first_row, count = std::exchange(block.num_rows, 1);
    for (block.first_row = first; block.first_row < first + count; ++block.first_row) rows.push_back(block);
  }
  return rows;
}

/// Returns the sequences of a pass as blocks of one row each; `lengths` cut the positions of its blocks.
std::vector<ScoreBlock> sequences_of(const Pass& pass, int64_t num_queries) {
  std::vector<ScoreBlock> sequences;
  const at::Tensor queries = pass.lengths->queries, keys = pass.lengths->keys;
  EXPECT_EQ(queries.scalar_type(), at::kInt);
  EXPECT_TRUE(queries.is_contiguous() && keys.is_contiguous());
  const bool causal = pass.blocks.front().causal();
  std::vector<ScoreBlock> rows = by_row(pass.blocks);
  if (pass.blocks.front().pairs == Pairs::AntiCausal) std::ranges::reverse(rows);
  for (int64_t i = 0; i + 1 < queries.size(0); ++i) {
    const int64_t query = queries[i].item<int64_t>(), key = keys[i].item<int64_t>();
    const int64_t num_queries_here = queries[i + 1].item<int64_t>() - query,
                  num_keys_here = keys[i + 1].item<int64_t>() - key;
    EXPECT_LE(num_queries_here, pass.lengths->longest_queries);
    EXPECT_LE(num_keys_here, pass.lengths->longest_keys);
    if (causal) {  // for all rows in turn, or a part of one
      const ScoreBlock& block = pass.blocks.front();
      sequences.push_back({block.query + query % num_queries, num_queries_here, block.key + key % num_queries,
                           num_keys_here, Pairs::Causal, block.first_row + query / num_queries, 1});
      if (num_keys_here > block.window) sequences.back().window = block.window;
    } else {
      const ScoreBlock& block = rows.at(static_cast<size_t>(i));
      EXPECT_EQ(num_queries_here, block.num_queries);
      EXPECT_EQ(num_keys_here, block.num_keys);
      sequences.push_back(block);
    }
  }
  return sequences;
}

bool windowed(const AttentionPlan& plan) {
  return std::ranges::any_of(plan.passes, [](const Pass& pass) {
    return pass.blocks.front().pairs == Pairs::AntiCausal || pass.blocks.front().window > 0;
  });
}

/// Expects packed and separate passes to have the same work, and few packed ones: at most `most_diagonals` diagonals
/// and one rectangle pass, with a window one of anti-causal blocks.
void expect_the_same_work(const AttentionPlan& packed, const AttentionPlan& separate, int64_t num_queries,
                          size_t most_diagonals = 1) {
  EXPECT_LE(packed.passes.size(), most_diagonals + (windowed(separate) ? 2 : 1));
  EXPECT_LE(packed.num_diagonals, most_diagonals);
  std::vector<ScoreBlock> found, wanted;
  int64_t scores = 0, wanted_scores = 0;
  for (const Pass& pass : separate.passes) {
    EXPECT_FALSE(pass.lengths);
    const std::vector<ScoreBlock> rows = by_row(pass.blocks);
    wanted.insert(wanted.end(), rows.begin(), rows.end());
    wanted_scores += pass.num_scores;
  }
  for (size_t i = 0; i < packed.passes.size(); ++i) {
    EXPECT_EQ(packed.passes[i].blocks.front().causal(), i < packed.num_diagonals);
    const std::vector<ScoreBlock> sequences = sequences_of(packed.passes[i], num_queries);
    found.insert(found.end(), sequences.begin(), sequences.end());
    scores += packed.passes[i].num_scores;
  }
  const auto sort = [](std::vector<ScoreBlock>& blocks) {
    std::ranges::sort(blocks, {}, [](const ScoreBlock& block) {
      return std::tuple(!block.causal(), block.first_row, block.query, block.key);
    });
  };
  sort(found);
  sort(wanted);
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(scores, wanted_scores);
}

TEST(AttentionPlan, PackedPassesOfAWindowAreTheSameWork) {
  size_t reversed = 0;
  for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
    for (const int64_t window : {1, 3, 7, 20}) {
      const PassOptions packing{at::Device(at::kCPU), window, /*window_in_kernel=*/true};
      const PassOptions none{std::nullopt, window, /*window_in_kernel=*/true};
      for (int rank = 0; rank < 4; ++rank) {
        const SequenceLayout layout = SequenceLayout(kind, kPlannedLength, 4, rank).with_documents(documents());
        for (int source = 0; source < 4; ++source) {
          SCOPED_TRACE(::testing::Message() << "rank " << rank << ", keys of " << source << ", window " << window);
          const auto packed = hop_passes(layout, 4, source, packing);
          expect_the_same_work(*packed, *hop_passes(layout, 4, source, none), layout.local_length());
          for (const Pass& pass : packed->passes) {
            reversed = std::max(reversed, pass.blocks.front().pairs == Pairs::AntiCausal ? pass.blocks.size() : 0);
          }
        }
      }
    }
  }
  EXPECT_GT(reversed, 1u) << "several anti-causal blocks in a pass";
}

TEST(AttentionPlan, PackedPassesAreTheSameWork) {
  for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
    for (const int ranks : {1, 2, 4}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const SequenceLayout layout = SequenceLayout(kind, kPlannedLength, ranks, rank).with_documents(documents());
        for (int source = 0; source < ranks; ++source) {
          SCOPED_TRACE(::testing::Message() << "rank " << rank << " of " << ranks << ", keys of " << source);
          const std::shared_ptr<const AttentionPlan> packed = hop_passes(layout, 4, source, kPacked);
          expect_the_same_work(*packed, *hop_passes(layout, 4, source, kSeparate), layout.local_length());
          if (packed->passes.size() > packed->num_diagonals) {
            EXPECT_LE(by_row(packed->passes.back().blocks).size(), 4u) << "one rectangle a row";
          }
        }
        expect_the_same_work(*whole_passes(layout, 4, kPacked), *whole_passes(layout, 4, kSeparate),
                             layout.local_length());
      }
    }
  }
}

// A row padded with separators has such documents. The memory of a call grows with their number.
TEST(AttentionPlan, DocumentsWithoutNumberAreSeveralPasses) {
  constexpr int64_t kMany = 2 * kMostSequences + 500;
  std::vector<int64_t> tokens(kMany - 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  const SequenceLayout layout = SequenceLayout::whole(kMany).with_documents({{}, tokens});
  const std::shared_ptr<const AttentionPlan> packed = hop_passes(layout, 2, 0, kPacked);
  EXPECT_EQ(packed->passes.size(), 4u) << "one of the first row, three of the second";
  for (const Pass& pass : packed->passes) EXPECT_LE(pass.lengths->queries.size(0), int64_t{kMostSequences} + 1);
  expect_the_same_work(*packed, *hop_passes(layout, 2, 0, kSeparate), layout.local_length(), 4);
}

TEST(AttentionPlan, IsMadeOnceForTheDocumentsOfAMicroBatch) {
  const SequenceLayout layout(Kind::ZigZag, kPlannedLength, 2, 0), divided = layout.with_documents(documents()),
                                                                   copy = divided;
  const auto plan = hop_passes(divided, 4, 0, kPacked);
  EXPECT_EQ(hop_passes(copy, 4, 0, kPacked), plan);
  EXPECT_EQ(hop_passes(divided.undistributed(), 4, 0, kPacked), hop_passes(copy.undistributed(), 4, 0, kPacked));
  EXPECT_NE(hop_passes(divided, 4, 1, kPacked), plan);
  EXPECT_NE(hop_passes(divided, 4, 0, kSeparate), plan);
  EXPECT_NE(whole_passes(divided, 4, kPacked), plan);
  const auto windowed = [](int64_t window) { return PassOptions{at::Device(at::kCPU), window, true}; };
  EXPECT_NE(hop_passes(divided, 4, 0, windowed(5)), plan);
  EXPECT_NE(hop_passes(divided, 4, 0, windowed(5)), hop_passes(divided, 4, 0, windowed(6)));
  EXPECT_EQ(hop_passes(copy, 4, 0, windowed(5)), hop_passes(divided, 4, 0, windowed(5)));
  EXPECT_NE(hop_passes(divided.undistributed(), 4, 0, kPacked), plan);
  EXPECT_NE(hop_passes(layout.with_documents(documents()), 4, 0, kPacked), plan);
  EXPECT_THROW(hop_passes(divided, 3, 0, kPacked), std::invalid_argument);
  EXPECT_NE(hop_passes(layout, 4, 0, kSeparate), nullptr) << "one document each";
}

// Packing is only for CUDA.
TEST(AttentionPlan, NothingIsPackedOnTheHost) {
  const SequenceLayout divided = SequenceLayout::whole(kPlannedLength).with_documents({{5}});
  EXPECT_TRUE(divided.divided());
  EXPECT_FALSE(SequenceLayout::whole(kPlannedLength).with_documents({{}, {}}).divided());
  for (const at::Device device : {at::kCPU, at::kMeta}) {
    const at::Tensor q = at::zeros({1, 2, kPlannedLength, 64}, at::TensorOptions(device).dtype(at::kHalf));
    EXPECT_EQ(pass_options(q, divided, {1}).packing, std::nullopt);
  }
}

}  // namespace
}  // namespace meshtrain
