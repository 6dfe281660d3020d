#include "context_parallel/blocks.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "context_parallel/wire_order.h"

namespace meshtrain {

namespace {

/// Appends a block of queries [q0, q1) and keys [k0, k1) unless it is empty.
void add(int64_t q0, int64_t q1, int64_t k0, int64_t k1, Pairs pairs, std::vector<ScoreBlock>& blocks) {
  if (q0 < q1 && k0 < k1) blocks.push_back({q0, q1 - q0, k0, k1 - k0, pairs});
}

/// Appends the blocks of queries [q0, q1) and keys [k0, k1) before them.
void cut_before(int64_t q0, int64_t q1, int64_t k0, int64_t k1, int64_t window, std::vector<ScoreBlock>& blocks) {
  if (window > 0) {  // without queries and keys that see none of the others
    q1 = std::min(q1, k1 - 1 + window);
    k0 = std::max(k0, q0 - window + 1);
  }
  if (q0 >= q1 || k0 >= k1) return;
  if (window == 0 || q1 - window <= k0) return add(q0, q1, k0, k1, Pairs::All, blocks);
  // Queries before `first` see all keys, and all queries see the keys from `end` on.
  const int64_t first = k0 + window - 1, end = q1 - window + 1;
  add(q0, first, k0, end, Pairs::All, blocks);
  add(first, q1, k0, end, Pairs::AntiCausal, blocks);
  add(q0, q1, end, k1, Pairs::All, blocks);
}

/// Appends the blocks of queries [q0, q1) and keys [k0, k1) of one document.
void cut_document(int64_t q0, int64_t q1, int64_t k0, int64_t k1, int64_t window, std::vector<ScoreBlock>& blocks) {
  const int64_t first = std::max(q0, k0), last = std::min(q1, k1);  // positions that are both a query and a key
  if (first >= last) {
    if (k0 < q0) cut_before(q0, q1, k0, k1, window, blocks);
    return;
  }
  cut_before(q0, q1, k0, std::min(k1, q0), window, blocks);
  add(first, last, first, last, Pairs::Causal, blocks);
  if (last - first > window) blocks.back().window = window;
  cut_before(last, q1, first, last, window, blocks);
}

/// Appends `count` equal blocks, `stride` positions apart: in one call for each row or for each block, as is less.
void repeat(ScoreBlock block, int64_t count, int64_t stride, std::vector<ScoreBlock>& blocks) {
  if (count > block.num_rows) {
    const int64_t end = block.first_row + std::exchange(block.num_rows, 1);
    if (count > 1) block.num_tiles = count, block.stride = stride;
    for (; block.first_row < end; ++block.first_row) blocks.push_back(block);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(block);
    block.query += stride;
    block.key += stride;
  }
}

/// Adjacent positions, and their offset in a rank's local order.
struct Run {
  SequenceLayout::Chunk chunk;
  int64_t local;
};

std::vector<Run> runs_of(const SequenceLayout& layout, int rank) {
  std::vector<Run> runs;
  int64_t local = 0;
  for (const SequenceLayout::Chunk& chunk : layout.chunks(rank)) {
    if (!runs.empty() && runs.back().chunk.start + runs.back().chunk.size == chunk.start) {
      runs.back().chunk.size += chunk.size;
    } else {
      runs.push_back({chunk, local});
    }
    local += chunk.size;
  }
  return runs;
}

/// Consecutive rows with the same documents.
struct Rows {
  int64_t first;
  int64_t count;
  const std::vector<int64_t>* starts;
};

std::vector<Rows> rows_of(const SequenceLayout& layout, int64_t batch) {
  static const std::vector<int64_t> one_document;
  const std::vector<std::vector<int64_t>>& documents = layout.documents();
  if (documents.empty()) return {{0, batch, &one_document}};
  if (static_cast<int64_t>(documents.size()) != batch) {
    throw std::invalid_argument("attention: the layout has documents for " + std::to_string(documents.size()) +
                                " sequences, the batch has " + std::to_string(batch));
  }
  std::vector<Rows> groups;
  for (int64_t row = 0; row < batch; ++row) {
    if (row > 0 && documents[row] == documents[row - 1]) {
      ++groups.back().count;
    } else {
      groups.push_back({row, 1, &documents[row]});
    }
  }
  return groups;
}

/// Returns the index of position `key` among the positions of `kept`.
int64_t index_among(const std::vector<SequenceLayout::Chunk>& kept, int64_t key) {
  int64_t before = 0;
  for (const SequenceLayout::Chunk& chunk : kept) {
    if (key < chunk.start + chunk.size) return before + key - chunk.start;
    before += chunk.size;
  }
  throw std::logic_error("attention: key " + std::to_string(key) + " was not sent");
}

/// Joins two rectangles that are adjacent in both orders. Returns true when `block` was joined to `previous`.
bool join(ScoreBlock& previous, const ScoreBlock& block) {
  if (previous.pairs != Pairs::All || block.pairs != Pairs::All || previous.first_row != block.first_row) return false;
  if (previous.query == block.query && previous.num_queries == block.num_queries &&
      previous.key + previous.num_keys == block.key) {
    previous.num_keys += block.num_keys;
    return true;
  }
  if (previous.key == block.key && previous.num_keys == block.num_keys &&
      previous.query + previous.num_queries == block.query) {
    previous.num_queries += block.num_queries;
    return true;
  }
  return false;
}

}  // namespace

std::vector<ScoreBlock> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                            const std::vector<int64_t>& starts, int64_t window) {
  const int64_t query_end = queries.start + queries.size, key_end = keys.start + keys.size;
  std::vector<ScoreBlock> blocks;
  auto next = std::upper_bound(starts.begin(), starts.end(), queries.start);  // first start after the first query
  int64_t begin = next == starts.begin() ? 0 : *std::prev(next);
  while (begin < query_end) {
    const int64_t end = next == starts.end() ? std::numeric_limits<int64_t>::max() : *next++;
    cut_document(std::max(begin, queries.start), std::min(end, query_end), std::max(begin, keys.start),
                 std::min(end, key_end), window, blocks);
    begin = end;
  }
  return blocks;
}

std::vector<ScoreBlock> tiled(const std::vector<ScoreBlock>& blocks) {
  std::vector<ScoreBlock> diagonals, others;
  for (const ScoreBlock& block : blocks) {
    const int64_t window = block.window;
    if (window == 0) {
      (block.causal() ? diagonals : others).push_back(block);
      continue;
    }
    const auto of_rows = [&](ScoreBlock tile) {
      tile.first_row = block.first_row;
      tile.num_rows = block.num_rows;
      return tile;
    };
    const int64_t count = block.num_queries / window, rest = block.num_queries % window;
    repeat(of_rows({block.query, window, block.key, window, Pairs::Causal}), count, window, diagonals);
    if (window > 1) {
      repeat(of_rows({block.query + window, window - 1, block.key + 1, window - 1, Pairs::AntiCausal}), count - 1,
             window, others);
    }
    if (rest == 0) continue;
    const int64_t last = count * window;  // first query of the last, shorter tile
    diagonals.push_back(of_rows({block.query + last, rest, block.key + last, rest, Pairs::Causal}));
    std::vector<ScoreBlock> before;
    cut_before(last, last + rest, 0, last, window, before);
    for (ScoreBlock tile : before) {
      tile.query += block.query;
      tile.key += block.key;
      others.push_back(of_rows(tile));
    }
  }
  diagonals.insert(diagonals.end(), others.begin(), others.end());
  return diagonals;
}

ScoreBlocks all_keys_blocks(const SequenceLayout& layout, int64_t batch) {
  ScoreBlocks blocks;
  for (const Rows& rows : rows_of(layout, batch)) {
    for (const Run& run : runs_of(layout, layout.rank())) {
      for (ScoreBlock block : cut(run.chunk, {0, run.chunk.start + run.chunk.size}, *rows.starts, /*window=*/0)) {
        block.query += run.local - run.chunk.start;
        block.first_row = rows.first;
        block.num_rows = rows.count;
        if (block.causal()) block.key = block.query;
        (block.causal() ? blocks.diagonals : blocks.rectangles).push_back(block);
      }
    }
  }
  return blocks;
}

std::vector<ScoreBlock> hop_blocks(const SequenceLayout& layout, int64_t batch, int source, int64_t window) {
  const std::vector<Run> queries = runs_of(layout, layout.rank()), keys = runs_of(layout, source);
  std::vector<ScoreBlock> diagonals, rectangles;
  for (const Rows& rows : rows_of(layout, batch)) {
    for (const Run& query_run : queries) {
      for (const Run& key_run : keys) {
        for (ScoreBlock block : cut(query_run.chunk, key_run.chunk, *rows.starts, window)) {
          block.query += query_run.local - query_run.chunk.start;
          block.key += key_run.local - key_run.chunk.start;
          block.first_row = rows.first;
          block.num_rows = rows.count;
          if (block.causal()) {
            diagonals.push_back(block);
          } else if (rectangles.empty() || !join(rectangles.back(), block)) {
            rectangles.push_back(block);
          }
        }
      }
    }
  }
  if (window > 0 && source != layout.rank()) {
    const std::vector<SequenceLayout::Chunk> kept = keys_within(layout, layout.rank(), source, window);
    for (ScoreBlock& block : rectangles) block.key = index_among(kept, block.key);
  }
  diagonals.insert(diagonals.end(), rectangles.begin(), rectangles.end());
  return diagonals;
}

std::vector<SequenceLayout::Chunk> keys_within(const SequenceLayout& layout, int receiver, int source, int64_t window) {
  std::vector<SequenceLayout::Chunk> kept;
  const std::vector<Run> queries = runs_of(layout, receiver);
  for (const Run& keys : runs_of(layout, source)) {
    const int64_t key_end = keys.chunk.start + keys.chunk.size, offset = keys.local - keys.chunk.start;
    for (const Run& query : queries) {
      const int64_t first = std::max(keys.chunk.start, query.chunk.start - window + 1);
      const int64_t end = std::min(key_end, query.chunk.start + query.chunk.size);
      if (first >= end) continue;
      const int64_t begin = first + offset;
      if (kept.empty() || begin > kept.back().start + kept.back().size) {
        kept.push_back({begin, end - first});
      } else {  // chunks of queries ascend, and so do the first keys that they see
        kept.back().size = std::max(kept.back().size, end + offset - kept.back().start);
      }
    }
  }
  return kept;
}

std::vector<int> hops_within(const SequenceLayout& layout, int64_t window) {
  const std::vector<WireChunk> chunks = wire_order(layout);
  const int64_t size = chunks.front().chunk.size;
  const auto rank_of = [&](size_t chunk) { return static_cast<int>(chunks[chunk].offset / layout.local_length()); };
  std::vector<bool> needed(static_cast<size_t>(layout.ranks()), false);
  for (size_t query = 0; query < chunks.size(); ++query) {
    for (size_t key = query; key-- > 0 && static_cast<int64_t>(query - key - 1) * size + 1 < window;) {
      needed[static_cast<size_t>((rank_of(query) - rank_of(key) + layout.ranks()) % layout.ranks())] = true;
    }
  }
  std::vector<int> hops;
  for (int hop = 1; hop < layout.ranks(); ++hop) {
    if (needed[static_cast<size_t>(hop)]) hops.push_back(hop);
  }
  return hops;
}

int64_t ScoreBlock::num_scores() const {
  switch (pairs) {
    case Pairs::All:
      return num_rows * num_tiles * num_queries * num_keys;
    case Pairs::Causal:
    case Pairs::AntiCausal:
      return num_rows * num_tiles * num_causal_scores(num_queries, window);
  }
  return 0;
}

int64_t num_causal_scores(int64_t length, int64_t window) {
  const int64_t all = length * (length + 1) / 2, beyond = window > 0 ? std::max<int64_t>(length - window, 0) : 0;
  return all - beyond * (beyond + 1) / 2;
}

}  // namespace meshtrain
