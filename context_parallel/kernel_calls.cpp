#include "context_parallel/kernel_calls.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>
#include <stdexcept>

#include "context_parallel/attention_choice.h"
#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/device/meta_device.h"

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

  void add(int64_t length) {
    ends.push_back(static_cast<int>(ends.back() + length));
    longest = std::max(longest, length);
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

/// Returns all diagonals as one causal call over all queries. When there are more than kMostSequences, returns one call
/// for every kMostSequences diagonals of a row.
std::vector<KernelCall> packed_diagonals(const std::vector<ScoreBlock>& diagonals, int64_t batch, int64_t num_queries,
                                         int64_t window, at::Device device) {
  const std::vector<std::vector<int64_t>> rows = lengths_of_rows(diagonals, batch, num_queries);
  const auto call = [&](ScoreBlock block, const Ends& ends) {
    const at::Tensor bounds = ends.on(device);
    if (ends.longest > window) block.window = window;
    int64_t num_scores = 0;
    for (size_t i = 1; i < ends.ends.size(); ++i)
      num_scores += num_causal_scores(ends.ends[i] - ends.ends[i - 1], window);
    return KernelCall({block}, PackedLengths{bounds, bounds, ends.longest, ends.longest}, num_scores);
  };
  size_t num_sequences = 0;
  for (const std::vector<int64_t>& row : rows) num_sequences += row.size();
  if (num_sequences <= kMostSequences) {
    Ends ends;
    for (const std::vector<int64_t>& row : rows) {
      for (const int64_t length : row) ends.add(length);
    }
    return {call({0, num_queries, 0, num_queries, Pairs::Causal, 0, batch}, ends)};
  }
  std::vector<KernelCall> calls;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t query = 0;
    for (size_t first = 0; first < rows[row].size(); first += kMostSequences) {
      Ends ends;
      for (size_t i = first; i < std::min(first + kMostSequences, rows[row].size()); ++i) ends.add(rows[row][i]);
      const int64_t count = ends.ends.back();
      calls.push_back(call({query, count, query, count, Pairs::Causal, static_cast<int64_t>(row), 1}, ends));
      query += count;
    }
  }
  return calls;
}

/// Returns blocks of one kind, rectangles or anti-causal ones, as one call.
KernelCall packed_blocks(std::vector<ScoreBlock> blocks, at::Device device) {
  Ends queries, keys;
  const auto add = [&](const ScoreBlock& block) {
    for (int64_t row = 0; row < block.num_rows; ++row) {
      queries.add(block.num_queries);
      keys.add(block.num_keys);
    }
  };
  if (blocks.front().pairs == Pairs::AntiCausal) {
    std::ranges::for_each(blocks | std::views::reverse, add);
  } else {
    std::ranges::for_each(blocks, add);
  }
  const int64_t num_scores = scores_of(blocks);
  return {std::move(blocks), PackedLengths{queries.on(device), keys.on(device), queries.longest, keys.longest},
          num_scores};
}

/// Returns the calls for `blocks`, diagonals first. Causal blocks must come first in `blocks`.
KernelCalls calls_of(const std::vector<ScoreBlock>& blocks, int64_t batch, int64_t num_queries,
                     const KernelCallOptions& options) {
  KernelCalls calls;
  if (!options.packing) {
    const std::vector<ScoreBlock> separate = computable(blocks, options);
    calls.calls.assign(separate.begin(), separate.end());
    calls.num_diagonals = static_cast<size_t>(std::ranges::count_if(separate, &ScoreBlock::causal));
    return calls;
  }
  const auto of_kind = [&](Pairs pairs) {
    std::vector<ScoreBlock> some;
    std::ranges::copy_if(blocks, std::back_inserter(some), [&](const auto& block) { return block.pairs == pairs; });
    return some;
  };
  const std::vector<ScoreBlock> diagonals = of_kind(Pairs::Causal);
  if (!diagonals.empty()) {
    calls.calls = packed_diagonals(diagonals, batch, num_queries, options.window, *options.packing);
  }
  calls.num_diagonals = calls.calls.size();
  for (const Pairs pairs : {Pairs::AntiCausal, Pairs::All}) {
    std::vector<ScoreBlock> others = of_kind(pairs);
    if (!others.empty()) calls.calls.push_back(packed_blocks(std::move(others), *options.packing));
  }
  return calls;
}

/// Returns the calls of the layout for these arguments. Makes them when the layout's cache does not have them.
std::shared_ptr<const KernelCalls> cached_calls(const SequenceLayout& layout, int64_t batch, int source,
                                                const KernelCallOptions& options,
                                                const std::function<KernelCalls()>& make) {
  if (layout.kernel_calls() == nullptr) return std::make_shared<const KernelCalls>(make());
  const int device = options.packing ? std::max<int>(options.packing->index(), 0) : -1;
  return layout.kernel_calls()->get(
      {layout.kind(), layout.ranks(), layout.rank(), batch, source, device, options.window, options.window_in_kernel},
      make);
}

}  // namespace

KernelCallOptions kernel_call_options(const at::Tensor& q, const SequenceLayout& layout, const AttentionRule& rule) {
  const bool capped = rule.softcap > 0, flash = is_gpu(q.device()) && flash_takes(q.scalar_type(), q.size(3));
  return {.packing = q.is_cuda() && flash && !capped && layout.divided() ? Packing(q.device()) : std::nullopt,
          .window = rule.window,
          .window_in_kernel = flash || capped};
}

std::vector<ScoreBlock> computable(const std::vector<ScoreBlock>& blocks, const KernelCallOptions& options) {
  return options.window_in_kernel ? blocks : tiled(blocks);
}

size_t half_of(const std::vector<KernelCall>& calls) {
  const auto scores = [](int64_t sum, const KernelCall& call) { return sum + call.num_scores; };
  const int64_t all = std::accumulate(calls.begin(), calls.end(), int64_t{0}, scores);
  int64_t sum = 0;
  size_t count = 0;
  while (count < calls.size() && 2 * sum < all) sum += calls[count++].num_scores;
  return count;
}

std::shared_ptr<const KernelCalls> hop_calls(const SequenceLayout& layout, int64_t batch, int source,
                                             const KernelCallOptions& options) {
  return cached_calls(layout, batch, source, options, [&] {
    return calls_of(hop_blocks(layout, batch, source, options.window), batch, layout.local_length(), options);
  });
}

std::shared_ptr<const KernelCalls> all_keys_calls(const SequenceLayout& layout, int64_t batch,
                                                  const KernelCallOptions& options) {
  return cached_calls(layout, batch, kAllKeys, options, [&] {
    ScoreBlocks all = all_keys_blocks(layout, batch);
    all.diagonals.insert(all.diagonals.end(), all.rectangles.begin(), all.rectangles.end());
    return calls_of(all.diagonals, batch, layout.local_length(), options);
  });
}

std::shared_ptr<const KernelCalls> KernelCallCache::get(const Key& key, const std::function<KernelCalls()>& make) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const KernelCalls>& calls = calls_[key];
  if (!calls) calls = std::make_shared<const KernelCalls>(make());
  return calls;
}

}  // namespace meshtrain
