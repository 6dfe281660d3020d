#pragma once

#include <cstdint>

namespace meshtrain {

/// Bytes that tensors on the host hold, counted by the allocator that gives them out, in all threads of this process:
/// what was asked for, without what the allocator adds. Files mapped into memory and what libraries allocate for
/// themselves are no tensors. A rank counts its own.
///
///   HostMemory& memory = HostMemory::counted();
///   const int64_t before = memory.live();
///   memory.restart_peak();
///   step();
///   const int64_t activations = memory.peak() - before;
class HostMemory {
 public:
  /// Counts from the first call on, until the process ends; tensors that were there before are never counted. The
  /// first call before other threads make tensors.
  static HostMemory& counted();

  /// Of the tensors that are there now.
  int64_t live() const;
  /// The largest live() since restart_peak() was called last, or since the first call of counted().
  int64_t peak() const;
  void restart_peak();

  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

 private:
  HostMemory();
};

}  // namespace meshtrain
