#include "context_parallel/kernel_calls.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/context_parallel/reference.h"

namespace meshtrain {
namespace {

using Kind = SequenceLayout::Kind;
using testing::Documents;

constexpr int64_t kPlannedLength = 48;  // six positions in each chunk of four zig-zag ranks
const KernelCallOptions kPacked = {.packing = at::Device(at::kCPU)}, kSeparate = {};

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

/// Returns the sequences of a call as blocks of one row each; `lengths` cut the positions of its blocks.
std::vector<ScoreBlock> sequences_of(const KernelCall& call, int64_t num_queries) {
  std::vector<ScoreBlock> sequences;
  const at::Tensor queries = call.lengths->queries, keys = call.lengths->keys;
  EXPECT_EQ(queries.scalar_type(), at::kInt);
  EXPECT_TRUE(queries.is_contiguous() && keys.is_contiguous());
  const bool causal = call.blocks.front().causal();
  std::vector<ScoreBlock> rows = by_row(call.blocks);
  if (call.blocks.front().pairs == Pairs::AntiCausal) std::ranges::reverse(rows);
  for (int64_t i = 0; i + 1 < queries.size(0); ++i) {
    const int64_t query = queries[i].item<int64_t>(), key = keys[i].item<int64_t>();
    const int64_t num_queries_here = queries[i + 1].item<int64_t>() - query,
                  num_keys_here = keys[i + 1].item<int64_t>() - key;
    EXPECT_LE(num_queries_here, call.lengths->longest_queries);
    EXPECT_LE(num_keys_here, call.lengths->longest_keys);
    if (causal) {  // for all rows in turn, or a part of one
      const ScoreBlock& block = call.blocks.front();
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

bool windowed(const KernelCalls& calls) {
  return std::ranges::any_of(calls.calls, [](const KernelCall& call) {
    return call.blocks.front().pairs == Pairs::AntiCausal || call.blocks.front().window > 0;
  });
}

/// Expects packed and separate calls to have the same work, and few packed calls: at most `most_diagonals` diagonals,
/// one call of rectangles and, with a window, one of anti-causal blocks.
void expect_the_same_work(const KernelCalls& packed, const KernelCalls& separate, int64_t num_queries,
                          size_t most_diagonals = 1) {
  EXPECT_LE(packed.calls.size(), most_diagonals + (windowed(separate) ? 2 : 1));
  EXPECT_LE(packed.num_diagonals, most_diagonals);
  std::vector<ScoreBlock> found, wanted;
  int64_t scores = 0, wanted_scores = 0;
  for (const KernelCall& call : separate.calls) {
    EXPECT_FALSE(call.lengths);
    const std::vector<ScoreBlock> rows = by_row(call.blocks);
    wanted.insert(wanted.end(), rows.begin(), rows.end());
    wanted_scores += call.num_scores;
  }
  for (size_t i = 0; i < packed.calls.size(); ++i) {
    EXPECT_EQ(packed.calls[i].blocks.front().causal(), i < packed.num_diagonals);
    const std::vector<ScoreBlock> sequences = sequences_of(packed.calls[i], num_queries);
    found.insert(found.end(), sequences.begin(), sequences.end());
    scores += packed.calls[i].num_scores;
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

TEST(KernelCalls, PackedCallsOfAWindowAreTheSameWork) {
  size_t reversed = 0;
  for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
    for (const int64_t window : {1, 3, 7, 20}) {
      const KernelCallOptions packing{at::Device(at::kCPU), window, /*window_in_kernel=*/true};
      const KernelCallOptions none{std::nullopt, window, /*window_in_kernel=*/true};
      for (int rank = 0; rank < 4; ++rank) {
        const SequenceLayout layout = SequenceLayout(kind, kPlannedLength, 4, rank).with_documents(documents());
        for (int source = 0; source < 4; ++source) {
          SCOPED_TRACE(::testing::Message() << "rank " << rank << ", keys of " << source << ", window " << window);
          const auto packed = hop_calls(layout, 4, source, packing);
          expect_the_same_work(*packed, *hop_calls(layout, 4, source, none), layout.local_length());
          for (const KernelCall& call : packed->calls) {
            reversed = std::max(reversed, call.blocks.front().pairs == Pairs::AntiCausal ? call.blocks.size() : 0);
          }
        }
      }
    }
  }
  EXPECT_GT(reversed, 1u) << "several anti-causal blocks in a pass";
}

TEST(KernelCalls, PackedCallsAreTheSameWork) {
  for (const Kind kind : {Kind::Contiguous, Kind::ZigZag}) {
    for (const int ranks : {1, 2, 4}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const SequenceLayout layout = SequenceLayout(kind, kPlannedLength, ranks, rank).with_documents(documents());
        for (int source = 0; source < ranks; ++source) {
          SCOPED_TRACE(::testing::Message() << "rank " << rank << " of " << ranks << ", keys of " << source);
          const std::shared_ptr<const KernelCalls> packed = hop_calls(layout, 4, source, kPacked);
          expect_the_same_work(*packed, *hop_calls(layout, 4, source, kSeparate), layout.local_length());
          if (packed->calls.size() > packed->num_diagonals) {
            EXPECT_LE(by_row(packed->calls.back().blocks).size(), 4u) << "one rectangle a row";
          }
        }
        expect_the_same_work(*all_keys_calls(layout, 4, kPacked), *all_keys_calls(layout, 4, kSeparate),
                             layout.local_length());
      }
    }
  }
}

// A row padded with separators has such documents. The memory of a call grows with their number.
TEST(KernelCalls, DocumentsWithoutNumberAreSeveralCalls) {
  constexpr int64_t kMany = 2 * kMostSequences + 500;
  std::vector<int64_t> tokens(kMany - 1);
  std::iota(tokens.begin(), tokens.end(), 1);
  const SequenceLayout layout = SequenceLayout::unsharded(kMany).with_documents({{}, tokens});
  const std::shared_ptr<const KernelCalls> packed = hop_calls(layout, 2, 0, kPacked);
  EXPECT_EQ(packed->calls.size(), 4u) << "one of the first row, three of the second";
  for (const KernelCall& call : packed->calls) EXPECT_LE(call.lengths->queries.size(0), int64_t{kMostSequences} + 1);
  expect_the_same_work(*packed, *hop_calls(layout, 2, 0, kSeparate), layout.local_length(), 4);
}

TEST(KernelCalls, IsMadeOnceForTheDocumentsOfAMicroBatch) {
  const SequenceLayout layout(Kind::ZigZag, kPlannedLength, 2, 0), divided = layout.with_documents(documents()),
                                                                   copy = divided;
  const auto calls = hop_calls(divided, 4, 0, kPacked);
  EXPECT_EQ(hop_calls(copy, 4, 0, kPacked), calls);
  EXPECT_EQ(hop_calls(divided.undistributed(), 4, 0, kPacked), hop_calls(copy.undistributed(), 4, 0, kPacked));
  EXPECT_NE(hop_calls(divided, 4, 1, kPacked), calls);
  EXPECT_NE(hop_calls(divided, 4, 0, kSeparate), calls);
  EXPECT_NE(all_keys_calls(divided, 4, kPacked), calls);
  const auto windowed = [](int64_t window) { return KernelCallOptions{at::Device(at::kCPU), window, true}; };
  EXPECT_NE(hop_calls(divided, 4, 0, windowed(5)), calls);
  EXPECT_NE(hop_calls(divided, 4, 0, windowed(5)), hop_calls(divided, 4, 0, windowed(6)));
  EXPECT_EQ(hop_calls(copy, 4, 0, windowed(5)), hop_calls(divided, 4, 0, windowed(5)));
  EXPECT_NE(hop_calls(divided.undistributed(), 4, 0, kPacked), calls);
  EXPECT_NE(hop_calls(layout.with_documents(documents()), 4, 0, kPacked), calls);
  EXPECT_THROW(hop_calls(divided, 3, 0, kPacked), std::invalid_argument);
  EXPECT_NE(hop_calls(layout, 4, 0, kSeparate), nullptr) << "one document each";
}

// Packing is only for CUDA.
TEST(KernelCalls, NothingIsPackedOnTheHost) {
  const SequenceLayout divided = SequenceLayout::unsharded(kPlannedLength).with_documents({{5}});
  EXPECT_TRUE(divided.divided());
  EXPECT_FALSE(SequenceLayout::unsharded(kPlannedLength).with_documents({{}, {}}).divided());
  for (const at::Device device : {at::kCPU, at::kMeta}) {
    const at::Tensor q = at::zeros({1, 2, kPlannedLength, 64}, at::TensorOptions(device).dtype(at::kHalf));
    EXPECT_EQ(kernel_call_options(q, divided, {1}).packing, std::nullopt);
  }
}

}  // namespace
}  // namespace meshtrain
