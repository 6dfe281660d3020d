#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "communicator.h"
#include "operation.h"
#include "tests/emulated_gpu/cuda/memory.h"
#include "tests/emulated_gpu/cuda/streams.h"

namespace meshtrain::emulated {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t result = ncclSuccess;
  struct Part {
    ncclComm* comm;
    cudaStream_t stream;
    std::vector<Operation> operations;
  };
  std::vector<Part> parts;  // by communicator
  std::vector<std::pair<ncclComm*, std::function<ncclResult_t()>>> jobs;
  std::vector<ncclComm*> aborted;
};

thread_local Group group;

/// A count of the graphs and streams that have the operations.
class Count {
 public:
  explicit Count(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Count() { --count_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  std::atomic<int>& count_;
};

ncclResult_t hand_over(ncclComm& comm, cudaStream_t stream, const std::vector<Operation>& operations) {
  try {
    const bool captured = is_captured(stream);
    const auto count = std::make_shared<Count>(captured ? comm.in_graphs : comm.given);
    if (!captured) {
      if (comm.last == nullptr) cudaEventCreateWithFlags(&comm.last, cudaEventDisableTiming);
      if (comm.last_stream != stream) cudaStreamWaitEvent(stream, comm.last, 0);
    }
    give(stream, [&comm, operations, count] { carry_out(comm, operations); });
    if (!captured) {
      cudaEventRecord(comm.last, stream);
      comm.last_stream = stream;
    }
    return ncclSuccess;
  } catch (const std::exception& error) {
    return refuse(&comm, ncclUnhandledCudaError, error.what());
  }
}

/// Connects the peers of the first collective during the call, for communicators that block. NCCL does so for others,
/// too, on its own thread.
ncclResult_t connect_peers(ncclComm& comm, const std::vector<Operation>& operations) {
  const bool collective = std::any_of(operations.begin(), operations.end(), [](const Operation& operation) {
    return operation.kind != OperationKind::Send && operation.kind != OperationKind::Receive;
  });
  if (!comm.is_blocking || comm.is_connected || !collective) return ncclSuccess;
  std::vector<Note> notes(static_cast<size_t>(comm.size));
  const Note mine{.kind = 3};
  if (!comm.shared.meet(mine, notes.data(), [&] { return comm.ends(); })) {
    return refuse(&comm, ncclRemoteError, "peers do not come to the first collective");
  }
  for (const Note& note : notes) {
    if (note.kind != mine.kind) return refuse(&comm, ncclInvalidUsage, "not all ranks are in their first collective");
  }
  comm.is_connected = true;
  return ncclSuccess;
}

/// Launches the operations. Half of the time a communicator that does not block hands them over late.
ncclResult_t launch(Group::Part& part) {
  ncclComm& comm = *part.comm;
  const Inside inside(comm);
  if (const ncclResult_t result = connect_peers(comm, part.operations); result != ncclSuccess) return result;
  if (comm.is_blocking || random_number() < 0.5) return hand_over(comm, part.stream, part.operations);
  return start(comm, [part = std::move(part)] {
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(1000 * random_number())));
    return hand_over(*part.comm, part.stream, part.operations);
  });
}

ncclResult_t end_group() {
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  if (!ended.aborted.empty()) abort_all(ended.aborted);
  if (ended.result != ncclSuccess) return ended.result;
  bool blocks = false, returns = false;
  for (const Group::Part& part : ended.parts) (part.comm->is_blocking ? blocks : returns) = true;
  for (const auto& [comm, job] : ended.jobs) (comm->is_blocking ? blocks : returns) = true;
  if (blocks && returns) {
    return refuse(nullptr, ncclInvalidArgument, "communicators that block and that do not in one group");
  }
  if (ended.jobs.size() > 1) return refuse(nullptr, ncclInvalidUsage, "several of these in a group are not emulated");
  ncclResult_t result = ncclSuccess;
  for (const auto& [comm, job] : ended.jobs) result = start_now(*comm, job);
  for (Group::Part part : ended.parts) {
    const ncclResult_t next = launch(part);
    if (result == ncclSuccess || result == ncclInProgress) result = next != ncclSuccess ? next : result;
  }
  return result;
}

bool overlaps(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto* const first = static_cast<const std::byte*>(a);
  const auto* const second = static_cast<const std::byte*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

/// Returns the bytes that this rank reads and writes.
std::pair<size_t, size_t> extent(const Operation& operation, const ncclComm& comm) {
  const size_t bytes = operation.count * bytes_of(operation.type), all = bytes * static_cast<size_t>(comm.size);
  const bool is_root = operation.peer == comm.rank;
  switch (operation.kind) {
    case OperationKind::AllReduce:
      return {bytes, bytes};
    case OperationKind::AllGather:
      return {bytes, all};
    case OperationKind::ReduceScatter:
      return {all, bytes};
    case OperationKind::Broadcast:
      return {is_root ? bytes : 0, bytes};
    case OperationKind::Reduce:
      return {bytes, is_root ? bytes : 0};
    case OperationKind::Send:
      return {bytes, 0};
    case OperationKind::Receive:
      return {0, bytes};
  }
  return {0, 0};
}

/// Returns true when input and output may share memory: only one way is valid.
bool is_in_place(const Operation& operation, const ncclComm& comm, size_t reads, size_t writes) {
  const auto rank = static_cast<size_t>(comm.rank);
  const auto* const input = static_cast<const std::byte*>(operation.input);
  const auto* const output = static_cast<const std::byte*>(operation.output);
  switch (operation.kind) {
    case OperationKind::AllGather:
      return input == output + rank * reads;
    case OperationKind::ReduceScatter:
      return output == input + rank * writes;
    default:
      return input == output;
  }
}

ncclResult_t look_at(const Operation& operation, ncclComm& comm) {
  const std::string name = name_of(operation.kind);
  const auto refused = [&](ncclResult_t result, const std::string& why) {
    return refuse(&comm, result, name + ": " + why);
  };
  if (bytes_of(operation.type) == 0) return refused(ncclInvalidArgument, "a type that is not emulated");
  if (operation.reduce != ncclSum && operation.reduce != ncclMax) {
    return refused(ncclInvalidArgument, "a reduction that is not emulated");
  }
  if (operation.peer < 0 || operation.peer >= comm.size) {
    return refused(ncclInvalidArgument, "rank " + std::to_string(operation.peer) + " of " + std::to_string(comm.size));
  }
  const auto [reads, writes] = extent(operation, comm);
  if (reads > 0 && device_of(operation.input, reads) != comm.device) {
    return refused(ncclInvalidArgument, "its input is not memory of the communicator's device, all of it");
  }
  if (writes > 0 && device_of(operation.output, writes) != comm.device) {
    return refused(ncclInvalidArgument, "its output is not memory of the communicator's device, all of it");
  }
  const bool both = reads > 0 && writes > 0 && overlaps(operation.input, reads, operation.output, writes);
  if (both && !is_in_place(operation, comm, reads, writes)) {
    return refused(ncclInvalidUsage, "input and output overlap, and not as they may");
  }
  int device = -1;
  cudaGetDevice(&device);
  if (device != comm.device) {
    return refused(ncclInvalidUsage, "the current device is " + std::to_string(device) + ", the communicator's " +
                                         std::to_string(comm.device));
  }
  return ncclSuccess;
}

/// Finds input and output in the symmetric windows. Symmetric kernels access other ranks' windows at this rank's own
/// offset, so it must be the same on all ranks for memory that every rank has completely.
ncclResult_t find_in_windows(Operation& operation, ncclComm& comm) {
  if (operation.kind == OperationKind::Send || operation.kind == OperationKind::Receive) return ncclSuccess;
  const auto [reads, writes] = extent(operation, comm);
  const WindowOffset input = window_offset(comm, operation.input, reads);
  const WindowOffset output = window_offset(comm, operation.output, writes);
  if ((reads > 0 && !input.ends_inside) || (writes > 0 && !output.ends_inside)) {
    return refuse(&comm, ncclInvalidArgument, std::string(name_of(operation.kind)) + ": it leaves its window");
  }
  if (input.window == 0 || output.window == 0) return ncclSuccess;
  if (operation.kind == OperationKind::AllReduce || operation.kind == OperationKind::ReduceScatter) {
    operation.input_offset = input.offset + 1;
  }
  if (operation.kind == OperationKind::AllReduce || operation.kind == OperationKind::AllGather) {
    operation.output_offset = output.offset + 1;
  }
  operation.windows = input.window << 32 | output.window;
  return ncclSuccess;
}

/// Returns which tensors are registered. NCCL accesses other ranks' registered memory in place, so all ranks must
/// register theirs, or none.
int registration_of(const Operation& operation, const ncclComm& comm) {
  if (operation.kind == OperationKind::Send || operation.kind == OperationKind::Receive) return 0;
  const auto [reads, writes] = extent(operation, comm);
  const bool has_root = operation.kind == OperationKind::Broadcast || operation.kind == OperationKind::Reduce;
  const bool input = !has_root && is_registered(comm, operation.input, reads);
  const bool output = !has_root && is_registered(comm, operation.output, writes);
  return (input ? 1 : 0) + (output ? 2 : 0);
}

ncclResult_t add(const Operation& operation, ncclComm* comm, cudaStream_t stream) {
  if (const ncclResult_t result = check(comm, name_of(operation.kind)); result != ncclSuccess) return result;
  if (const ncclResult_t result = look_at(operation, *comm); result != ncclSuccess) return result;
  if (operation.count == 0) return ncclSuccess;
  auto part = std::find_if(group.parts.begin(), group.parts.end(), [&](const auto& p) { return p.comm == comm; });
  if (part == group.parts.end()) {
    group.parts.push_back({comm, stream, {}});
    part = group.parts.end() - 1;
  }
  if (part->stream != stream) return refuse(comm, ncclInvalidUsage, "one communicator on two streams in a group");
  part->operations.push_back(operation);
  part->operations.back().registered = registration_of(operation, *comm);
  return find_in_windows(part->operations.back(), *comm);
}

/// Issues an operation. A call outside a group is a group of one.
ncclResult_t issue(const Operation& operation, ncclComm* comm, cudaStream_t stream) {
  ++group.depth;
  const ncclResult_t result = add(operation, comm, stream);
  if (result != ncclSuccess && group.result == ncclSuccess) group.result = result;
  const ncclResult_t end = end_group();
  return result != ncclSuccess ? result : end;
}

}  // namespace

int group_depth() {
  return group.depth;
}

void start_later(ncclComm& comm, std::function<ncclResult_t()> job) {
  group.jobs.emplace_back(&comm, std::move(job));
}

void abort_later(ncclComm& comm) {
  comm.is_aborted = true;
  group.aborted.push_back(&comm);
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse(nullptr, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return end_group();
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue({OperationKind::AllReduce, input, output, count, type, reduce, 0}, comm, stream);
}

ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return issue({OperationKind::AllGather, input, output, count, type, ncclSum, 0}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                               ncclComm_t comm, cudaStream_t stream) {
  return issue({OperationKind::ReduceScatter, input, output, count, type, reduce, 0}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue({OperationKind::Broadcast, input, output, count, type, ncclSum, root}, comm, stream);
}

ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return issue({OperationKind::Reduce, input, output, count, type, reduce, root}, comm, stream);
}

ncclResult_t ncclSend(const void* input, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue({OperationKind::Send, input, nullptr, count, type, ncclSum, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* output, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return issue({OperationKind::Receive, nullptr, output, count, type, ncclSum, peer}, comm, stream);
}

}  // extern "C"
