#include "context_parallel/blocks.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace meshtrain {

namespace {

/// The blocks of queries [q0, q1) and keys [k0, k1) of one document.
void cut_document(int64_t q0, int64_t q1, int64_t k0, int64_t k1, std::vector<Block>& blocks) {
  const auto add = [&](int64_t query, int64_t query_end, int64_t key, int64_t key_end, bool causal) {
    if (query < query_end && key < key_end) {
      blocks.push_back({query, query_end - query, key, key_end - key, causal});
    }
  };
  const int64_t first = std::max(q0, k0), last = std::min(q1, k1);  // positions that are both query and key
  if (first >= last) {
    if (k0 < q0) add(q0, q1, k0, k1, false);
    return;
  }
  add(q0, q1, k0, std::min(k1, q0), false);
  add(first, last, first, last, true);
  add(last, q1, first, last, false);
}

std::vector<SequenceLayout::Chunk> joined(const std::vector<SequenceLayout::Chunk>& chunks) {
  std::vector<SequenceLayout::Chunk> runs;
  for (const SequenceLayout::Chunk& chunk : chunks) {
    if (!runs.empty() && runs.back().start + runs.back().size == chunk.start) {
      runs.back().size += chunk.size;
    } else {
      runs.push_back(chunk);
    }
  }
  return runs;
}

}  // namespace

std::vector<Block> cut(const SequenceLayout::Chunk& queries, const SequenceLayout::Chunk& keys,
                       const std::vector<int64_t>& starts) {
  const int64_t query_end = queries.start + queries.size, key_end = keys.start + keys.size;
  std::vector<Block> blocks;
  auto next = std::upper_bound(starts.begin(), starts.end(), queries.start);  // first start behind the first query
  int64_t begin = next == starts.begin() ? 0 : *std::prev(next);
  while (begin < query_end) {
    const int64_t end = next == starts.end() ? std::numeric_limits<int64_t>::max() : *next++;
    cut_document(std::max(begin, queries.start), std::min(end, query_end), std::max(begin, keys.start),
                 std::min(end, key_end), blocks);
    begin = end;
  }
  return blocks;
}

std::vector<RowPlan> plan_rows(const SequenceLayout& layout, int64_t batch) {
  static const std::vector<int64_t> one_document;
  const std::vector<std::vector<int64_t>>& documents = layout.documents();
  if (!documents.empty() && static_cast<int64_t>(documents.size()) != batch) {
    throw std::invalid_argument("attention: the layout has documents for " + std::to_string(documents.size()) +
                                " sequences, the batch has " + std::to_string(batch));
  }
  const std::vector<SequenceLayout::Chunk> runs = joined(layout.chunks(layout.rank()));

  std::vector<RowPlan> plans;
  for (int64_t row = 0; row < batch; ++row) {
    const std::vector<int64_t>& starts = documents.empty() ? one_document : documents[row];
    if (row > 0 && (documents.empty() || starts == documents[row - 1])) {
      ++plans.back().num_rows;
      continue;
    }
    RowPlan& plan = plans.emplace_back(RowPlan{row, 1, {}, {}});
    int64_t local = 0;
    for (const SequenceLayout::Chunk& run : runs) {
      for (Block block : cut(run, {0, run.start + run.size}, starts)) {
        block.query += local - run.start;
        (block.causal ? plan.diagonals : plan.rectangles).push_back(block);
      }
      local += run.size;
    }
  }
  return plans;
}

}  // namespace meshtrain
