#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

namespace meshtrain::emulated {

enum class OperationKind { AllReduce = 1, AllGather, ReduceScatter, Broadcast, Reduce, Send, Receive };

struct Operation {
  OperationKind kind = OperationKind::AllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  ///< number of elements, as in the call
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int peer = 0;        ///< the other rank, or the root
  int registered = 0;  ///< for a collective: 1 when its input is registered, 2 when its output is, 3 when both are
  // Windows, from 1 on, and offsets of a collective whose input and output are in symmetric windows.
  uint64_t windows = 0, input_offset = 0, output_offset = 0;
};

const char* name_of(OperationKind kind);

/// Returns the size of a type; 0 for a type that is not emulated.
size_t bytes_of(ncclDataType_t type);

/// Runs a group's operations, all at once, on the thread of their stream. Fails `comm` when other ranks do not agree
/// with them, and then returns only after it is aborted, like a kernel of NCCL.
void carry_out(ncclComm& comm, const std::vector<Operation>& operations);

/// Writes the sum or maximum of `count` elements of all `inputs`, in their order, to `output`. Types narrower than fp32
/// are summed in fp32.
void reduce(const std::vector<const void*>& inputs, void* output, size_t count, ncclDataType_t type, ncclRedOp_t how);

}  // namespace meshtrain::emulated
