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
  size_t count = 0;  ///< elements, as the call says it
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduce = ncclSum;
  int peer = 0;        ///< the other rank, or the root
  int registered = 0;  ///< of a collective: 1 when its input is, 2 when its output is, 3 when both are
  // The windows and offsets of a collective whose input and output lie in symmetric windows, from 1 on.
  uint64_t windows = 0, input_place = 0, output_place = 0;
};

const char* name_of(OperationKind kind);

/// 0 for a type that is not emulated.
size_t bytes_of(ncclDataType_t type);

/// Does a group's operations, all at once, by the thread of their stream. Fails `comm` where the other ranks do not
/// agree with them, and then does not return until it is aborted, as a kernel of NCCL would not.
void carry_out(ncclComm& comm, const std::vector<Operation>& operations);

/// sum or maximum of `count` elements of all `inputs` in their order, into `output`; what is shorter than fp32 is added
/// up in fp32.
void reduce(const std::vector<const void*>& inputs, void* output, size_t count, ncclDataType_t type, ncclRedOp_t how);

}  // namespace meshtrain::emulated
