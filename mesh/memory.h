#pragma once

#include <atomic>
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

/// Bytes of the windows that ranks of one host share, apart from HostMemory: what was asked for, without rounding.
///
///   of a rank:  own() + common() / ranks of the host that share it + exchange()
class WindowMemory {
 public:
  static WindowMemory& counted();

  /// Of this rank's tensors of Placement::Own.
  int64_t own() const { return own_; }
  /// Of tensors of Placement::Common, which the host holds once.
  int64_t common() const { return common_; }
  /// What this rank's groups hold for flags, and for small tensors on their way: HostBoard::kRankBytes for each group
  /// that has several ranks of this host.
  int64_t exchange() const { return exchange_; }

  void add_own(int64_t bytes) { own_ += bytes; }
  void add_common(int64_t bytes) { common_ += bytes; }
  void add_exchange(int64_t bytes) { exchange_ += bytes; }

 private:
  std::atomic<int64_t> own_ = 0, common_ = 0, exchange_ = 0;
};

}  // namespace meshtrain
