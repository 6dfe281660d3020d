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

/// One kernel call: one block, or several blocks packed side by side.
struct KernelCall {
  /// Makes a call for one block.
  KernelCall(const ScoreBlock& block) : blocks{block}, num_scores(block.num_scores()) {}
  KernelCall(std::vector<ScoreBlock> packed, PackedLengths of, int64_t count)
      : blocks(std::move(packed)), lengths(std::move(of)), num_scores(count) {}

  std::vector<ScoreBlock> blocks;        ///< positions of queries and keys; all blocks have the same kind of pairs
  std::optional<PackedLengths> lengths;  ///< lengths of the sequences in packed blocks, block by block and row by row;
                                         ///< of anti-causal blocks in the opposite order
  int64_t num_scores;                    ///< query-key pairs that count, in all rows
};

/// The kernel calls of a rank for some keys.
struct KernelCalls {
  std::vector<KernelCall> calls;  ///< diagonals first
  size_t num_diagonals;           ///< number of calls that are diagonals
};

/// The device of the lengths of packed documents; nullopt: each block is its own call.
using Packing = std::optional<at::Device>;

/// Options for making kernel calls of blocks.
struct KernelCallOptions {
  Packing packing = {};
  int64_t window = 0;             ///< of AttentionRule
  bool window_in_kernel = false;  ///< true: a causal block with a window is one call; false: it is cut into tiles
};

/// Returns the options for q under a rule. Documents are packed on the device of q when variable-length flash attention
/// can compute them (attention_choice.h); windows are left to flash attention on CUDA, and to the softcap's own path.
/// The result depends on shape, dtype, device and rule, so it is the same on every rank.
KernelCallOptions kernel_call_options(const at::Tensor& q, const SequenceLayout& layout, const AttentionRule& rule);

/// Returns `blocks`, cut so that one kernel call can compute each of them.
std::vector<ScoreBlock> computable(const std::vector<ScoreBlock>& blocks, const KernelCallOptions& options);

/// Returns the least number of leading calls that compute half of the scores of `calls`.
size_t half_of(const std::vector<KernelCall>& calls);

/// Largest number of documents in one call: flash's backward needs 128 rows of fp32 for each, however short it is.
inline constexpr size_t kMostSequences = 1024;

/// Return the blocks of hop_blocks() and all_keys_blocks() (blocks.h) as calls; all_keys_blocks() ignores windows. With
/// packing, up to kMostSequences documents need at most two calls: one for all diagonals and one for all rectangles. A
/// window adds one call for its anti-causal blocks. For more documents, diagonals need one call for every
/// kMostSequences documents of a row.
///
/// Calls for a layout with documents are made once. All layers reuse them, on any thread that computes on the same
/// stream. Lengths are copied to the device in stream order; the host does not wait.
std::shared_ptr<const KernelCalls> hop_calls(const SequenceLayout& layout, int64_t batch, int source,
                                             const KernelCallOptions& options);
std::shared_ptr<const KernelCalls> all_keys_calls(const SequenceLayout& layout, int64_t batch,
                                                  const KernelCallOptions& options);

/// The calls made so far for the documents of one micro-batch.
class KernelCallCache {
 public:
  /// Kind and ranks of the layout, rank, batch, source (-1: all keys), index of the packing's device (-1: none), window
  /// and whether a kernel has it.
  using Key = std::tuple<SequenceLayout::Kind, int, int, int64_t, int, int, int64_t, bool>;

  std::shared_ptr<const KernelCalls> get(const Key& key, const std::function<KernelCalls()>& make);

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const KernelCalls>> calls_;
};

}  // namespace meshtrain
