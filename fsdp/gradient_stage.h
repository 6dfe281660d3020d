#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "fsdp/options.h"
#include "fsdp/shard_transfer.h"
#include "fsdp/unit.h"

namespace meshtrain {

/// A function that gets, and may change, the reduced shard of a buffer's gradient before its copy to the host.
using OnReduced = std::function<void(const FlatBuffer& buffer, const at::Tensor& gradients)>;

/// Device memory in which shards of offloaded gradients are added up and summed before their copy to the host. A few
/// units have memory at the same time: one being copied, one being reduced, and one for each kind of sum that follows.
/// Units take turns in the order of the reduction.
class GradientStage {
 public:
  /// Allocates the memory. `units` must be settled.
  GradientStage(const std::vector<Unit>& units, const FsdpOptions& options);

  /// Gives the unit's shards memory until leave(). `adds`: starts to copy the gradients of earlier micro-batches into
  /// this memory; gradients() makes the current stream wait for the copies.
  void enter(size_t unit, bool adds);
  /// Returns the shard's gradients on the device: [shard().numel], of the shard's dtype.
  at::Tensor gradients(size_t unit, const FlatBuffer& buffer);
  /// Calls `on_reduced`, which may be empty, with each of the unit's shards. Then starts to copy the shards to the
  /// host.
  void leave(size_t unit, const OnReduced& on_reduced);
  /// Takes the memory back from all units after a backward that has thrown.
  void forget();
  /// Returns when the host has all gradients.
  void finish() { transfer_.finish(); }

  int64_t bytes() const { return static_cast<int64_t>(memory_.nbytes()); }
  /// Returns the costs of copies so far.
  CopyCosts copy_costs() const { return transfer_.copy_costs(); }

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
  std::deque<size_t> free_;           // slots, the longest free first
  ShardTransfer transfer_;
};

}  // namespace meshtrain
