#include "context_parallel/blocks.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace meshtrain {

namespace {

/// Appends the blocks of queries [q0, q1) and keys [k0, k1) of one document.
void cut_document(int64_t q0, int64_t q1, int64_t k0, int64_t k1, std::vector<ScoreBlock>& blocks) {
  const auto add = [&](int64_t query, int64_t query_end, int64_t key, int64_t key_end, bool causal) {
    if (query < query_end && key < key_end) {
      blocks.push_back({query, query_end - query, key, key_end - key, causal});
    }
  };
  const int64_t first = std::max(q0, k0), last = std::min(q1, k1);  // positions that are both a query and a key
  if (first >= last) {
    if (k0 < q0) add(q0, q1, k0, k1, false);
    return;
  }
  add(q0, q1, k0, std::min(k1, q0), false);
  add(first, last, first, last, true);
  add(last, q1, first, last, false);
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

/// Joins two rectangles that are adjacent in both orders. Returns true when `block` was joined to `previous`.
bool join(ScoreBlock& previous, const ScoreBlock& block) {
  if (previous.causal || block.causal || previous.first_row != block.first_row) return false;
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
                            const std::vector<int64_t>& starts) {
  const int64_t query_end = queries.start + queries.size, key_end = keys.start + keys.size;
  std::vector<ScoreBlock> blocks;
  auto next = std::upper_bound(starts.begin(), starts.end(), queries.start);  // first start after the first query
  int64_t begin = next == starts.begin() ? 0 : *std::prev(next);
  while (begin < query_end) {
    const int64_t end = next == starts.end() ? std::numeric_limits<int64_t>::max() : *next++;
    cut_document(std::max(begin, queries.start), std::min(end, query_end), std::max(begin, keys.start),
                 std::min(end, key_end), blocks);
    begin = end;
  }
  return blocks;
}

WholePlan plan_whole(const SequenceLayout& layout, int64_t batch) {
  WholePlan plan;
  for (const Rows& rows : rows_of(layout, batch)) {
    for (const Run& run : runs_of(layout, layout.rank())) {
      for (ScoreBlock block : cut(run.chunk, {0, run.chunk.start + run.chunk.size}, *rows.starts)) {
        block.query += run.local - run.chunk.start;
        block.first_row = rows.first;
        block.num_rows = rows.count;
        if (block.causal) block.key = block.query;
        (block.causal ? plan.diagonals : plan.rectangles).push_back(block);
      }
    }
  }
  return plan;
}

std::vector<ScoreBlock> plan_hop(const SequenceLayout& layout, int64_t batch, int source) {
  const std::vector<Run> queries = runs_of(layout, layout.rank()), keys = runs_of(layout, source);
  std::vector<ScoreBlock> diagonals, rectangles;
  for (const Rows& rows : rows_of(layout, batch)) {
    for (const Run& query_run : queries) {
      for (const Run& key_run : keys) {
        for (ScoreBlock block : cut(query_run.chunk, key_run.chunk, *rows.starts)) {
          block.query += query_run.local - query_run.chunk.start;
          block.key += key_run.local - key_run.chunk.start;
          block.first_row = rows.first;
          block.num_rows = rows.count;
          if (block.causal) {
            diagonals.push_back(block);
          } else if (rectangles.empty() || !join(rectangles.back(), block)) {
            rectangles.push_back(block);
          }
        }
      }
    }
  }
  diagonals.insert(diagonals.end(), rectangles.begin(), rectangles.end());
  return diagonals;
}

}  // namespace meshtrain
