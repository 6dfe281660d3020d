#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "context_parallel/blocks.h"
#include "context_parallel/packed_attention.h"
#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// One kernel call of a plan: one block, or blocks packed side by side.
struct Pass {
  /// One block by itself.
  Pass(const ScoreBlock& block) : blocks{block}, num_scores(block.num_scores()) {}
  Pass(std::vector<ScoreBlock> packed, PackedLengths of, int64_t count)
      : blocks(std::move(packed)), lengths(std::move(of)), num_scores(count) {}

  std::vector<ScoreBlock> blocks;        ///< all causal, or none: where queries and keys lie
  std::optional<PackedLengths> lengths;  ///< of the sequences that packed blocks hold, block by block and row by row
  int64_t num_scores;                    ///< query-key pairs that count, in all rows
};

/// The kernel calls of a rank with some keys.
struct AttentionPlan {
  std::vector<Pass> passes;  ///< diagonals first
  size_t num_diagonals;      ///< of the passes
};

/// The device of the lengths of packed documents; none: each block is a call of its own.
using Packing = std::optional<at::Device>;

/// The device of q when its sequences are divided into documents that variable-length flash attention takes
/// (attention_choice.h): a function of shape, dtype and device, so it is the same on every rank.
Packing packing_of(const at::Tensor& q, const SequenceLayout& layout);

/// Documents of one call, at most: the backward of flash needs 128 rows of fp32 for each, however short it is.
inline constexpr size_t kMostSequences = 1024;

/// plan_hop() and plan_whole() of blocks.h as passes. With packing there are two at most for up to kMostSequences
/// documents: all diagonals in one, all rectangles in the other; of more, diagonals are a call for that many of a row.
/// Those of a layout with documents are made once and found again by every layer, from any thread that computes on the
/// same stream; lengths travel to the device in its order, and the host does not wait.
std::shared_ptr<const AttentionPlan> hop_passes(const SequenceLayout& layout, int64_t batch, int source,
                                                const Packing& packing);
std::shared_ptr<const AttentionPlan> whole_passes(const SequenceLayout& layout, int64_t batch, const Packing& packing);

/// The plans of one micro-batch's documents that were made so far.
class AttentionPlans {
 public:
  /// Kind and ranks of the layout, rank, batch, source (-1: all keys), index of the packing's device (-1: none).
  using Key = std::tuple<SequenceLayout::Kind, int, int, int64_t, int, int>;

  std::shared_ptr<const AttentionPlan> get(const Key& key, const std::function<AttentionPlan()>& make);

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const AttentionPlan>> plans_;
};

}  // namespace meshtrain
