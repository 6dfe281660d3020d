#pragma once

#include <cstdint>
#include <vector>

#include "mesh/backend.h"

namespace meshtrain {

// The calls that the nccl backend makes, computed without NCCL.

/// One call, or a copy within the device. Offsets and counts are elements of the collective's input and output.
struct NcclCall {
  enum class Kind { AllReduce, AllGather, ReduceScatter, Broadcast, Send, Receive, Copy };

  Kind kind;
  int peer = -1;  ///< the other end of Send and Receive; the root of Broadcast
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;  ///< all-gather: of the shard; reduce-scatter: of the shard
  bool operator==(const NcclCall&) const = default;
};

/// Returns the calls of rank `rank` of `size`, one NCCL group where they are several: a Receive stands before the Send
/// that it answers, empty messages are left out. Empty: nothing to do.
std::vector<NcclCall> nccl_calls(const Collective& collective, int rank, int size);

/// Returns true for a reduce-scatter whose shard lies in the input at an offset where NCCL would not write it.
bool needs_output_apart(const Collective& collective, int rank);

/// Returns the most thread blocks that the collectives of one queue may take from computing; 0: as NCCL sees fit. Links
/// have few, because a receive takes its blocks until the message has come. `two_queues`: groups in the background
/// gather and reduce at once, each with half of what one queue would have.
int nccl_max_blocks(const GroupTraits& traits, bool two_queues);

}  // namespace meshtrain
