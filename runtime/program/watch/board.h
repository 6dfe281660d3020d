#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mesh/group.h"
#include "mesh/host_map.h"
#include "runtime/program/watch/sighting.h"

namespace meshtrain {

/// Memory that the ranks of one host share and in which each shows what it is doing. It has no name in a file system,
/// so nothing of it stays behind however the ranks end.
class Board {
 public:
  struct Slot {
    std::atomic<int64_t> process;      ///< the rank's process; 0: not started yet, or ended
    SharedValue<Sighting> last;        ///< shown every few hundredths of a second, and when its phase or work changes
    SharedValue<NewestFlight> newest;  ///< shown at once
    std::atomic<int64_t> beat;         ///< grows as long as the process runs
    std::atomic<bool> has_written_flights;  ///< after the job's end was reported

    /// Returns `last`, with the newest collective as its last.
    Sighting sight() const;
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free);

  /// Every rank of `world` must construct one; `hosts`: that of `world`.
  Board(const Group& world, const HostMap& hosts);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// Returns true when this rank shares memory with its host's first rank; false when the memory is refused, or when
  /// processes cannot see each other (containers).
  bool is_shared() const { return memory_ != nullptr; }
  Slot& own() const { return slot(index_); }
  /// Returns the slot of the next rank of this host that has not ended; this rank's own when there is none.
  Slot& next() const;
  /// Returns the slots of this host's ranks, by their index on the host.
  std::vector<Slot*> slots() const;
  int index() const { return index_; }
  /// Claims the right to report the end of the job. Returns true for the first caller on this host.
  bool may_report() const;
  /// Returns true once any rank of this host has called may_report().
  bool is_reported() const;

 private:
  Slot& slot(int index) const;

  int size_;
  int index_;
  void* memory_ = nullptr;
  size_t bytes_;
};

/// Returns true when the process has ended. A zombie has ended too: some containers never reap them.
bool is_gone(int64_t process);
/// Returns the signal that has ended a process whose end nobody has collected; 0 when that is not known.
int signal_of_end(int64_t process);
/// Returns true when the process is stopped, by a signal or a debugger.
bool is_stopped(int64_t process);

}  // namespace meshtrain
