#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/backend.h"
#include "mesh/layout.h"

namespace meshtrain {

// What the nccl backend asks of NCCL, worked out without it.

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

/// What rank `rank` of `size` calls, as one group where they are several: a Receive stands before the Send it answers,
/// nothing is sent that is empty. No calls: there is nothing to do.
std::vector<NcclCall> nccl_calls(const Collective& collective, int rank, int size);

/// A reduce-scatter whose shard lies in the input, where NCCL would not write it: needs an output apart.
bool needs_output_apart(const Collective& collective, int rank);

/// The axes along which `ranks` of the mesh differ: "dp_cp", in the mesh's order; "world" for all of its ranks where
/// several axes are wide.
std::string nccl_group_name(const MeshLayout& layout, const std::vector<int>& ranks);

/// The most thread blocks that the collectives of one queue may take from computing; 0: as NCCL sees fit. Sums over dp
/// run beside the backward and may take long; what goes over tp stands in the way of the next product. `two_queues`:
/// groups over dp gather and reduce at once, each with half of what one queue would have.
int nccl_max_blocks(const std::string& group_name, bool two_queues);

}  // namespace meshtrain
