#include "context_parallel/attention_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "context_parallel/attention_choice.h"
#include "mesh/device_transfer.h"

namespace meshtrain {
namespace {

constexpr int kAllKeys = -1;

int64_t scores_of(const std::vector<ScoreBlock>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                         [](int64_t sum, const ScoreBlock& block) { return sum + block.num_scores(); });
}

/// A counter for the lengths of adjacent sequences.
struct Ends {
  std::vector<int> ends = {0};
  int64_t longest = 0;
  int64_t causal_scores = 0;

  void add(int64_t length) {
    ends.push_back(static_cast<int>(ends.back() + length));
    longest = std::max(longest, length);
    causal_scores += length * (length + 1) / 2;
  }
  at::Tensor on(at::Device device) const { return to_device(at::tensor(ends, at::kInt), device); }
};

/// Returns the lengths of each row's diagonals, which contain its queries once and in order.
std::vector<std::vector<int64_t>> lengths_of_rows(const std::vector<ScoreBlock>& diagonals, int64_t batch,
                                                  int64_t num_queries) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(batch));
  std::vector<int64_t> ends(static_cast<size_t>(batch));
  for (const ScoreBlock& block : diagonals) {
    for (int64_t row = block.first_row; row < block.first_row + block.num_rows; ++row) {
      int64_t& end = ends.at(static_cast<size_t>(row));
      if (block.key != block.query || block.query != end) {
        throw std::logic_error("attention: diagonals do not lie side by side");
      }
      end += block.num_queries;
      rows[static_cast<size_t>(row)].push_back(block.num_queries);
    }
  }
  if (std::ranges::any_of(ends, [&](int64_t end) { return end != num_queries; })) {
    throw std::logic_error("attention: a query is in no diagonal");
  }
  return rows;
}

/// Returns all diagonals as one causal pass over all queries; for many, one pass for kMostSequences of a row.
std::vector<Pass> packed_diagonals(const std::vector<ScoreBlock>& diagonals, int64_t batch, int64_t num_queries,
                                   at::Device device) {
  const std::vector<std::vector<int64_t>> rows = lengths_of_rows(diagonals, batch, num_queries);
  const auto pass = [&](const ScoreBlock& block, const Ends& ends) {
    const at::Tensor bounds = ends.on(device);
    return Pass({block}, PackedLengths{bounds, bounds, ends.longest, ends.longest}, ends.causal_scores);
  };
  size_t num_sequences = 0;
  for (const std::vector<int64_t>& row : rows) num_sequences += row.size();
  if (num_sequences <= kMostSequences) {
    Ends ends;
    for (const std::vector<int64_t>& row : rows) {
      for (const int64_t length : row) ends.add(length);
    }
    return {pass({0, num_queries, 0, num_queries, /*causal=*/true, 0, batch}, ends)};
  }
  std::vector<Pass> passes;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t query = 0;
    for (size_t first = 0; first < rows[row].size(); first += kMostSequences) {
      Ends ends;
      for (size_t i = first; i < std::min(first + kMostSequences, rows[row].size()); ++i) ends.add(rows[row][i]);
      const int64_t count = ends.ends.back();
      passes.push_back(pass({query, count, query, count, /*causal=*/true, static_cast<int64_t>(row), 1}, ends));
      query += count;
    }
  }
  return passes;
}

Pass packed_rectangles(std::vector<ScoreBlock> rectangles, at::Device device) {
  Ends queries, keys;
  for (const ScoreBlock& block : rectangles) {
    for (int64_t row = 0; row < block.num_rows; ++row) {
      queries.add(block.num_queries);
      keys.add(block.num_keys);
    }
  }
  const int64_t num_scores = scores_of(rectangles);
  return {std::move(rectangles), PackedLengths{queries.on(device), keys.on(device), queries.longest, keys.longest},
          num_scores};
}

AttentionPlan planned(const std::vector<ScoreBlock>& diagonals, const std::vector<ScoreBlock>& rectangles,
                      int64_t batch, int64_t num_queries, const Packing& packing) {
  AttentionPlan plan;
  if (packing) {
    if (!diagonals.empty()) plan.passes = packed_diagonals(diagonals, batch, num_queries, *packing);
    plan.num_diagonals = plan.passes.size();
    if (!rectangles.empty()) plan.passes.push_back(packed_rectangles(rectangles, *packing));
    return plan;
  }
  for (const std::vector<ScoreBlock>* blocks : {&diagonals, &rectangles}) {
    plan.passes.insert(plan.passes.end(), blocks->begin(), blocks->end());
  }
  plan.num_diagonals = diagonals.size();
  return plan;
}

/// Returns the layout's plan with this key, and makes it when it is new.
std::shared_ptr<const AttentionPlan> plan_of(const SequenceLayout& layout, int64_t batch, int source,
                                             const Packing& packing, const std::function<AttentionPlan()>& make) {
  if (layout.plans() == nullptr) return std::make_shared<const AttentionPlan>(make());
  const int device = packing ? std::max<int>(packing->index(), 0) : -1;
  return layout.plans()->get({layout.kind(), layout.ranks(), layout.rank(), batch, source, device}, make);
}

}  // namespace

Packing packing_of(const at::Tensor& q, const SequenceLayout& layout) {
  const bool packed = q.is_cuda() && layout.divided() && takes_documents(q.scalar_type(), q.size(3));
  return packed ? Packing(q.device()) : std::nullopt;
}

std::shared_ptr<const AttentionPlan> hop_passes(const SequenceLayout& layout, int64_t batch, int source,
                                                const Packing& packing) {
  return plan_of(layout, batch, source, packing, [&] {
    std::vector<ScoreBlock> diagonals = plan_hop(layout, batch, source);
    const auto first = std::ranges::find(diagonals, false, &ScoreBlock::causal);
    const std::vector<ScoreBlock> rectangles(first, diagonals.end());
    diagonals.erase(first, diagonals.end());
    return planned(diagonals, rectangles, batch, layout.local_length(), packing);
  });
}

std::shared_ptr<const AttentionPlan> whole_passes(const SequenceLayout& layout, int64_t batch, const Packing& packing) {
  return plan_of(layout, batch, kAllKeys, packing, [&] {
    const WholePlan whole = plan_whole(layout, batch);
    return planned(whole.diagonals, whole.rectangles, batch, layout.local_length(), packing);
  });
}

std::shared_ptr<const AttentionPlan> AttentionPlans::get(const Key& key, const std::function<AttentionPlan()>& make) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const AttentionPlan>& plan = plans_[key];
  if (!plan) plan = std::make_shared<const AttentionPlan>(make());
  return plan;
}

}  // namespace meshtrain
