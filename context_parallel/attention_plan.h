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

/// One kernel call of a plan: one block, or several blocks packed side by side.
struct Pass {
  /// Makes a pass of one block.
  Pass(const ScoreBlock& block) : blocks{block}, num_scores(block.num_scores()) {}
  Pass(std::vector<ScoreBlock> packed, PackedLengths of, int64_t count)
      : blocks(std::move(packed)), lengths(std::move(of)), num_scores(count) {}

  std::vector<ScoreBlock> blocks;        ///< positions of queries and keys; all blocks are causal, or none
  std::optional<PackedLengths> lengths;  ///< lengths of the sequences in packed blocks, block by block and row by row
  int64_t num_scores;                    ///< query-key pairs that count, in all rows
};

/// The kernel calls of a rank for some keys.
struct AttentionPlan {
  std::vector<Pass> passes;  ///< diagonals first
  size_t num_diagonals;      ///< number of passes that are diagonals
};

/// The device of the lengths of packed documents; nullopt: each block is its own call.
using Packing = std::optional<at::Device>;

/// Returns the device of q when its sequences have documents that variable-length flash attention can compute
/// (attention_choice.h). The result depends on shape, dtype and device, so it is the same on every rank.
Packing packing_of(const at::Tensor& q, const SequenceLayout& layout);

/// Largest number of documents in one call: flash's backward needs 128 rows of fp32 for each, however short it is.
inline constexpr size_t kMostSequences = 1024;

/// Return plan_hop() and plan_whole() of blocks.h as passes. With packing these are at most two passes for up to
/// kMostSequences documents: one for all diagonals, one for all rectangles. For more documents, diagonals need one call
/// for every kMostSequences documents of a row. Plans for a layout with documents are made once, and every layer finds
/// them again, on any thread that computes on the same stream. Lengths are copied to the device in stream order; the
/// host does not wait.
std::shared_ptr<const AttentionPlan> hop_passes(const SequenceLayout& layout, int64_t batch, int source,
                                                const Packing& packing);
std::shared_ptr<const AttentionPlan> whole_passes(const SequenceLayout& layout, int64_t batch, const Packing& packing);

/// The plans made so far for the documents of one micro-batch.
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
