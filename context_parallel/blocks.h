#pragma once

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// A part of the score matrix that one kernel call computes without a mask, for consecutive rows of the batch.
struct ScoreBlock {
  int64_t query;  ///< first query
  int64_t num_queries;
  int64_t key;  ///< first key
  int64_t num_keys;
  bool causal;  ///< true: a square on the diagonal whose lower triangle counts; false: all pairs count
  int64_t first_row = 0;
  int64_t num_rows = 1;

  /// Returns the number of query-key pairs that count, in all rows.
  int64_t num_scores() const {
    return num_rows * (causal ? num_queries * (num_queries + 1) / 2 : num_queries * num_keys);
  }
  bool operator==(const ScoreBlock&) const = default;
};

/// Cuts the scores of `queries` with `keys`, causal and inside documents, into blocks of global positions. Each pair
/// that counts lies in exactly one block, and no block has other pairs. The two chunks may overlap in any way.
/// `starts`: as in SequenceLayout::documents(). Queries without keys in `keys` are in no block.
std::vector<ScoreBlock> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                            const std::vector<int64_t>& starts);

// Plans: the work of the layout's rank for a batch of `batch` rows. Queries are counted in local order. Adjacent chunks
// are joined, and so are rows with the same documents. Each function throws std::invalid_argument when the layout has
// documents for another number of rows.

/// The work of a rank that has the keys of all positions.
struct WholePlan {
  std::vector<ScoreBlock> diagonals;   ///< keys in local order, the queries' own positions; each query is in one block
  std::vector<ScoreBlock> rectangles;  ///< earlier keys, by global position
};
WholePlan plan_whole(const SequenceLayout& layout, int64_t batch);

/// Returns the work of a rank with the keys of rank `source`, counted in that rank's local order. For its own keys the
/// diagonals come first: each query is in one of them.
std::vector<ScoreBlock> plan_hop(const SequenceLayout& layout, int64_t batch, int source);

}  // namespace meshtrain
