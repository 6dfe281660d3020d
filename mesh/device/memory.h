#pragma once

#include <atomic>
#include <cstdint>

namespace meshtrain {

/// Bytes of tensors on the host, counted by their allocator in all threads of this process: the bytes requested,
/// without the allocator's own. Files mapped into memory and memory that libraries allocate for themselves are not
/// counted. Each rank counts its own.
///
///   HostMemory& memory = HostMemory::counted();
///   const int64_t before = memory.live();
///   memory.restart_peak();
///   step();
///   const int64_t activations = memory.peak() - before;
class HostMemory {
 public:
  /// Returns the counter, which counts from the first call until the process ends; older tensors are never counted. The
  /// first call must come before other threads make tensors.
  static HostMemory& counted();

  /// Returns the bytes of the tensors that exist now.
  int64_t live() const;
  /// Returns the largest live() since the last restart_peak(), or since the first call of counted().
  int64_t peak() const;
  void restart_peak();

  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

 private:
  HostMemory();
};

/// Returns the most bytes of host memory that this process has had resident so far, shared memory that it touched
/// included: VmHWM of /proc/self/status; 0 where the system does not say.
int64_t resident_peak();

/// The most bytes of a GPU's memory that a process has had so far, as LibTorch's allocator counts them.
struct DevicePeak {
  int64_t allocated = 0;  ///< by tensors
  int64_t reserved = 0;   ///< by the allocator, what it keeps for later tensors included
};

/// Bytes of the windows that ranks of one host share, which HostMemory does not count: the bytes requested, without
/// rounding.
///
///   of a rank:  own() + common() / ranks of the host that share it + exchange()
class WindowMemory {
 public:
  static WindowMemory& counted();

  /// Returns the bytes of this rank's tensors of Placement::Own.
  int64_t own() const { return own_; }
  /// Returns the bytes of tensors of Placement::Common, which the host holds once.
  int64_t common() const { return common_; }
  /// Returns the bytes that this rank's groups hold for flags and for small tensors in transit: HostBoard::kRankBytes
  /// for each group that has several ranks of this host.
  int64_t exchange() const { return exchange_; }

  void add_own(int64_t bytes) { own_ += bytes; }
  void add_common(int64_t bytes) { common_ += bytes; }
  void add_exchange(int64_t bytes) { exchange_ += bytes; }

 private:
  std::atomic<int64_t> own_ = 0, common_ = 0, exchange_ = 0;
};

}  // namespace meshtrain
