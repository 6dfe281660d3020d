#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "fsdp/options.h"
#include "fsdp/shard_transfer.h"
#include "fsdp/unit.h"

namespace meshtrain {

/// A function that gets the reduced shard of a buffer's gradient before it leaves the device, and may change it.
using OnReduced = std::function<void(const FlatBuffer& buffer, const at::Tensor& gradients)>;

/// Memory of the device in which shards of offloaded gradients are added up and summed before they leave for the host.
/// A few units have memory at the same time: one whose copy is under way, one that is being reduced, and one for each
/// kind of sum that follows. Each takes its turn in the order of the reduction.
class GradientStage {
 public:
  /// `units`: settled. Allocates the memory.
  GradientStage(const std::vector<Unit>& units, const FsdpOptions& options);

  /// Gives the unit's shards memory until leave(). `adds`: starts to copy the gradients of earlier micro-batches into
  /// it, which the current stream waits for in gradients().
  void enter(size_t unit, bool adds);
  /// Returns [shard().numel] on the device, of the shard's dtype.
  at::Tensor gradients(size_t unit, const FlatBuffer& buffer);
  /// Starts to copy the unit's shards to the host. `on_reduced` gets them before; may be empty.
  void leave(size_t unit, const OnReduced& on_reduced);
  /// Takes the memory back from all units: of a backward that has thrown.
  void forget();
  /// Returns when the host has all gradients.
  void finish() { transfer_.finish(); }

  int64_t bytes() const { return static_cast<int64_t>(memory_.nbytes()); }
  /// Returns the bytes copied between device and host so far.
  int64_t copied() const { return transfer_.bytes(); }

 private:
  struct Slot {
    at::Tensor memory;
    StreamMark arrived, left;
  };
  struct Part {
    const FlatBuffer* buffer;
    int64_t offset;  // bytes in the slot
  };

  Slot& slot_of(size_t unit);
  at::Tensor view(const Slot& slot, const Part& part) const;

  std::vector<std::vector<Part>> parts_;  // of each unit
  at::Tensor memory_;
  std::vector<Slot> slots_;
  std::map<size_t, size_t> entered_;  // unit to slot
  std::deque<size_t> free_;           // slots, the one that has been free for the longest time first
  ShardTransfer transfer_;
};

}  // namespace meshtrain
