#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "communicator.h"
#include "operation.h"

namespace meshtrain::emulated {
namespace {

/// A transfer in one direction between this rank and another.
struct Transfer {
  Heading heading;
  std::byte* data = nullptr;
  uint64_t bytes = 0, offset = 0;
};

std::string text_of(const Heading& heading) {
  return std::string(name_of(static_cast<OperationKind>(heading.kind))) + " of " + std::to_string(heading.count) +
         " elements of type " + std::to_string(heading.type) + ", reduction " + std::to_string(heading.reduce) +
         ", root " + std::to_string(heading.root) + ", registered " + std::to_string(heading.registered) +
         ", windows " + std::to_string(heading.windows) + " at " + std::to_string(heading.input_offset) + " and " +
         std::to_string(heading.output_offset) + ", number " + std::to_string(heading.number);
}

/// The sends and receives of a group's operations, in order for each pair of ranks, and the work after their arrival.
class Exchange {
 public:
  explicit Exchange(ncclComm& comm)
      : comm_(comm), sends_(static_cast<size_t>(comm.size)), receives_(static_cast<size_t>(comm.size)) {}

  void add(const Operation& operation) {
    const size_t bytes = operation.count * bytes_of(operation.type);
    const auto* const input = static_cast<const std::byte*>(operation.input);
    auto* const output = static_cast<std::byte*>(operation.output);
    const bool is_root = operation.peer == comm_.rank;
    const auto rank = static_cast<size_t>(comm_.rank);
    switch (operation.kind) {
      case OperationKind::Send:
        send(operation, operation.peer, input, bytes);
        break;
      case OperationKind::Receive:
        receive(operation, operation.peer, output, bytes);
        break;
      case OperationKind::AllGather:
        for_others([&](int peer) {
          send(operation, peer, input, bytes);
          receive(operation, peer, output + static_cast<size_t>(peer) * bytes, bytes);
        });
        std::memmove(output + rank * bytes, input, bytes);
        break;
      case OperationKind::Broadcast:
        if (!is_root) {
          receive(operation, operation.peer, output, bytes);
          break;
        }
        for_others([&](int peer) { send(operation, peer, input, bytes); });
        if (output != input) afterwards_.push_back([=] { std::memcpy(output, input, bytes); });
        break;
      case OperationKind::AllReduce:
      case OperationKind::ReduceScatter: {
        const size_t stride = operation.kind == OperationKind::AllReduce ? 0 : bytes;
        reduce_later(operation, input + rank * stride);
        for_others([&](int peer) { send(operation, peer, input + static_cast<size_t>(peer) * stride, bytes); });
        break;
      }
      case OperationKind::Reduce:
        if (is_root) {
          reduce_later(operation, input);
        } else {
          send(operation, operation.peer, input, bytes);
        }
        break;
    }
    if (operation.kind != OperationKind::Send && operation.kind != OperationKind::Receive) ++comm_.operations;
  }

  /// Runs all transfers. Returns false when the communicator was aborted, or ranks do not agree.
  bool run() {
    for (;;) {
      bool is_done = false, moved = false;
      const auto step = [&] {
        is_done = true;
        moved = false;
        for (int peer = 0; peer < comm_.size; ++peer) {
          moved |= push(peer);
          moved |= pull(peer);
          is_done &= sends_[static_cast<size_t>(peer)].empty() && receives_[static_cast<size_t>(peer)].empty();
        }
        return moved || is_done;
      };
      const bool goes_on = wait_for(step, [&] { return comm_.ends() || disagrees_; });
      if (!goes_on || disagrees_) return false;
      if (is_done) break;
    }
    for (const auto& work : afterwards_) work();
    return true;
  }

 private:
  template <typename F>
  void for_others(const F& f) {
    for (int step = 1; step < comm_.size; ++step) f((comm_.rank + step) % comm_.size);
  }

  Heading heading_of(const Operation& operation) const {
    const bool is_pair = operation.kind == OperationKind::Send || operation.kind == OperationKind::Receive;
    const bool reduces = operation.kind == OperationKind::AllReduce || operation.kind == OperationKind::ReduceScatter ||
                         operation.kind == OperationKind::Reduce;
    const bool has_root = operation.kind == OperationKind::Broadcast || operation.kind == OperationKind::Reduce;
    return {.kind = static_cast<int32_t>(is_pair ? OperationKind::Send : operation.kind),
            .type = static_cast<int32_t>(operation.type),
            .reduce = reduces ? static_cast<int32_t>(operation.reduce) : 0,
            .root = has_root ? operation.peer : 0,
            .registered = operation.registered,
            .count = operation.count,
            .windows = operation.windows,
            .input_offset = operation.input_offset,
            .output_offset = operation.output_offset,
            .number = is_pair ? 0 : comm_.operations + 1};
  }

  void send(const Operation& operation, int peer, const std::byte* data, size_t bytes) {
    sends_[static_cast<size_t>(peer)].push_back({heading_of(operation), const_cast<std::byte*>(data), bytes, 0});
  }

  void receive(const Operation& operation, int peer, std::byte* data, size_t bytes) {
    receives_[static_cast<size_t>(peer)].push_back({heading_of(operation), data, bytes, 0});
  }

  /// Reduces when the parts of all ranks have arrived. They are not in the output, which may be the input, too.
  void reduce_later(const Operation& operation, const std::byte* mine) {
    const size_t bytes = operation.count * bytes_of(operation.type);
    std::vector<const void*> inputs(static_cast<size_t>(comm_.size));
    inputs[static_cast<size_t>(comm_.rank)] = mine;
    for_others([&](int peer) {
      std::vector<std::byte>& part = parts_.emplace_back(bytes);
      inputs[static_cast<size_t>(peer)] = part.data();
      receive(operation, peer, part.data(), bytes);
    });
    afterwards_.push_back([=] { reduce(inputs, operation.output, operation.count, operation.type, operation.reduce); });
  }

  bool push(int peer) {
    auto& queue = sends_[static_cast<size_t>(peer)];
    Mailbox& box = comm_.shared.mailbox(comm_.rank, peer);
    if (queue.empty() || box.written != box.read) return false;
    Transfer& transfer = queue.front();
    box.heading = transfer.heading;
    box.offset = transfer.offset;
    box.bytes = std::min<uint64_t>(kChunkBytes, transfer.bytes - transfer.offset);
    std::memcpy(box.data, transfer.data + transfer.offset, box.bytes);
    transfer.offset += box.bytes;
    ++box.written;
    if (transfer.offset == transfer.bytes) queue.pop_front();
    return true;
  }

  bool pull(int peer) {
    auto& queue = receives_[static_cast<size_t>(peer)];
    Mailbox& box = comm_.shared.mailbox(peer, comm_.rank);
    if (queue.empty() || box.written == box.read) return false;
    Transfer& transfer = queue.front();
    if (!(box.heading == transfer.heading) || box.offset != transfer.offset) {
      disagrees_ = true;
      fail(comm_, ncclInvalidUsage,
           text_of(transfer.heading) + ", but rank " + std::to_string(peer) + " is in " + text_of(box.heading));
      return true;
    }
    std::memcpy(transfer.data + transfer.offset, box.data, box.bytes);
    transfer.offset += box.bytes;
    ++box.read;
    if (transfer.offset == transfer.bytes) queue.pop_front();
    return true;
  }

  ncclComm& comm_;
  std::vector<std::deque<Transfer>> sends_, receives_;  // by peer
  std::deque<std::vector<std::byte>> parts_;
  std::vector<std::function<void()>> afterwards_;
  bool disagrees_ = false;
};

/// Checks MESHTRAIN_EMULATED_NCCL_FAIL="rank:n": returns true when this process has that rank and runs its n-th group
/// of operations since the variable was set.
bool is_to_fail() {
  static std::mutex mutex;
  static std::string asked_before;
  static long groups = 0;
  const char* const variable = std::getenv("MESHTRAIN_EMULATED_NCCL_FAIL");
  const std::string asked = variable != nullptr ? variable : "";
  const std::lock_guard lock(mutex);
  if (asked != asked_before) groups = 0;
  asked_before = asked;
  ++groups;
  const size_t colon = asked.find(':');
  return colon != std::string::npos && std::stoi(asked) == world_rank() && std::stol(asked.substr(colon + 1)) == groups;
}

}  // namespace

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::AllReduce:
      return "all-reduce";
    case OperationKind::AllGather:
      return "all-gather";
    case OperationKind::ReduceScatter:
      return "reduce-scatter";
    case OperationKind::Broadcast:
      return "broadcast";
    case OperationKind::Reduce:
      return "reduce";
    case OperationKind::Send:
      return "send";
    case OperationKind::Receive:
      return "receive";
  }
  return "unknown operation";
}

void carry_out(ncclComm& comm, const std::vector<Operation>& operations) {
  ++comm.at_work;
  if (!comm.is_aborted) {
    bool is_done = false;
    if (is_to_fail()) {
      fail(comm, ncclSystemError, "failure asked for by MESHTRAIN_EMULATED_NCCL_FAIL");
    } else {
      Exchange exchange(comm);
      for (const Operation& operation : operations) exchange.add(operation);
      is_done = exchange.run();
    }
    if (!is_done) wait_for([&] { return comm.is_aborted.load(); }, [] { return false; });
  }
  --comm.at_work;
}

}  // namespace meshtrain::emulated
