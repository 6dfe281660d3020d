#pragma once

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// A piece of the score matrix that one kernel call computes without a mask, in consecutive rows of the batch.
struct ScoreBlock {
  int64_t query;  ///< first query
  int64_t num_queries;
  int64_t key;  ///< first key
  int64_t num_keys;
  bool causal;  ///< a square on the diagonal, of which the lower triangle counts; otherwise all of it does
  int64_t first_row = 0;
  int64_t num_rows = 1;

  /// Query-key pairs that count, in all rows.
  int64_t num_scores() const {
    return num_rows * (causal ? num_queries * (num_queries + 1) / 2 : num_queries * num_keys);
  }
  bool operator==(const ScoreBlock&) const = default;
};

/// Cuts what `queries` attend to among `keys`, causally and inside documents, into blocks of global positions: every
/// pair that counts lies in exactly one of them, and no other pair in any. The two chunks may overlap in any way.
/// `starts`: as in SequenceLayout::documents(). Queries with no key among `keys` are in no block.
std::vector<ScoreBlock> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                            const std::vector<int64_t>& starts);

// Plans: the work of the layout's rank for a batch of `batch` rows. Queries are counted in local order. Chunks that
// adjoin are taken together, and so are rows whose documents are the same. Each throws std::invalid_argument when the
// layout has documents for another number of rows.

/// What a rank computes once it has the keys of all positions.
struct WholePlan {
  std::vector<ScoreBlock>
      diagonals;  ///< keys in local order, those of the queries themselves; each query is in one block
  std::vector<ScoreBlock> rectangles;  ///< keys before them, by global position
};
WholePlan plan_whole(const SequenceLayout& layout, int64_t batch);

/// What a rank computes with the keys that rank `source` holds, counted in the local order of that rank. With its own
/// keys the diagonals come first: each query is in one of them.
std::vector<ScoreBlock> plan_hop(const SequenceLayout& layout, int64_t batch, int source);

}  // namespace meshtrain
