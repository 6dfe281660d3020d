#pragma once

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// A piece of the score matrix that one kernel call computes without a mask.
struct Block {
  int64_t query;  ///< first query: a global position from cut(), an index in local order from plan_rows()
  int64_t num_queries;
  int64_t key;  ///< first key: a global position
  int64_t num_keys;
  bool causal;  ///< a square on the diagonal, of which the lower triangle counts; otherwise all of it does

  /// Query-key pairs that count.
  int64_t num_scores() const { return causal ? num_queries * (num_queries + 1) / 2 : num_queries * num_keys; }
  bool operator==(const Block&) const = default;
};

/// Cuts what `queries` attend to among `keys`, causally and inside documents, into blocks: every pair that counts lies
/// in exactly one of them, and no other pair in any. The two chunks may overlap in any way. `starts`: as in
/// SequenceLayout::documents(). Queries with no key among `keys` are in no block.
std::vector<Block> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                       const std::vector<int64_t>& starts);

/// What a rank computes for consecutive batch rows whose documents are the same.
struct RowPlan {
  int64_t first_row;
  int64_t num_rows;
  std::vector<Block> diagonals;   ///< keys at the queries' own positions; together they hold each local query once
  std::vector<Block> rectangles;  ///< keys before them; the queries of each are those of one diagonal
};

/// The work of the layout's rank when keys of all positions can be had. Chunks that adjoin are taken together.
/// Throws std::invalid_argument when the layout has documents for another number of rows than `batch`.
std::vector<RowPlan> plan_rows(const SequenceLayout& layout, int64_t batch);

}  // namespace meshtrain
