#pragma once

#include <cstdint>
#include <vector>

#include "context_parallel/attention_rule.h"
#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// A part of the score matrix that one kernel call computes without a mask, for consecutive rows of the batch, or for
/// equal parts of one row (tiles).
struct ScoreBlock {
  int64_t query;  ///< first query
  int64_t num_queries;
  int64_t key;  ///< first key
  int64_t num_keys;
  Pairs pairs;  ///< pairs that count; a causal block is a square on the diagonal, an anti-causal one any square
  int64_t first_row = 0;
  int64_t num_rows = 1;
  int64_t window = 0;     ///< of a causal block: keys that a query sees at most, fewer than num_keys; 0: all before
  int64_t num_tiles = 1;  ///< tile i is the same block, `stride` positions later; several tiles have one row
  int64_t stride = 0;

  bool causal() const { return pairs == Pairs::Causal; }
  /// Returns the number of query-key pairs that count, in all rows and tiles.
  int64_t num_scores() const;
  bool operator==(const ScoreBlock&) const = default;
};

/// Returns the number of pairs of `length` queries that each see up to `window` keys; 0: all before.
int64_t num_causal_scores(int64_t length, int64_t window);

/// Cuts the scores of `queries` with `keys`, causal, inside documents and inside a window (AttentionRule), into blocks
/// of global positions. Each pair that counts lies in exactly one block, no block has other pairs, and every query of a
/// block has a key in it. The two chunks may overlap in any way. `starts`: as in SequenceLayout::documents(). Queries
/// without keys in `keys` are in no block. Causal blocks longer than the window have one of their own.
std::vector<ScoreBlock> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                            const std::vector<int64_t>& starts, int64_t window);

/// Cuts causal blocks with a window into blocks without: tiles as long as the window, each of which is a causal square
/// and, with the positions before it, an anti-causal one. Equal tiles are one block (for many rows of few tiles: equal
/// rows). Returns other blocks as they are; causal blocks come first.
std::vector<ScoreBlock> tiled(const std::vector<ScoreBlock>& blocks);

// Blocks for kernel calls: the work of the layout's rank for a batch of `batch` rows. Queries are counted in local
// order. Adjacent chunks are joined, and so are rows with the same documents. Each function throws
// std::invalid_argument when the layout has documents for another number of rows.

/// The work of a rank that has the keys of all positions.
struct ScoreBlocks {
  std::vector<ScoreBlock> diagonals;   ///< keys in local order, the queries' own positions; each query is in one block
  std::vector<ScoreBlock> rectangles;  ///< earlier keys, by global position
};
ScoreBlocks all_keys_blocks(const SequenceLayout& layout, int64_t batch);

/// Returns the work of a rank with the keys of rank `source`, counted in that rank's local order; with a window, keys
/// of another rank are counted among keys_within(). For its own keys the diagonals come first: each query is in one of
/// them.
std::vector<ScoreBlock> hop_blocks(const SequenceLayout& layout, int64_t batch, int source, int64_t window);

/// Returns the positions of rank `source`, in its local order, that queries of rank `receiver` see inside a window of
/// `window` > 0 positions: ascending and not adjacent. Documents are not considered.
std::vector<SequenceLayout::Chunk> keys_within(const SequenceLayout& layout, int receiver, int source, int64_t window);

/// Returns the distances h, ascending from 1 on, for which the queries of some rank r see keys of rank r - h (modulo
/// the number of ranks) inside a window of `window` > 0 positions.
std::vector<int> hops_within(const SequenceLayout& layout, int64_t window);

}  // namespace meshtrain
