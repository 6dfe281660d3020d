#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "mesh/group.h"
#include "mesh/host_map.h"
#include "runtime/watch/sighting.h"

namespace meshtrain {

/// Memory in which the ranks of one host show where they are. It has no name: nothing of it stays behind however they
/// end.
class Board {
 public:
  struct Slot {
    std::atomic<int64_t> process;  ///< 0: not there yet, or it has ended
    Sighting last;
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free);

  /// Every rank of `world` must construct one; `hosts` is theirs.
  Board(const Group& world, const HostMap& hosts);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// Whether this rank shares one with its host's first rank: not where the memory is refused, or where processes
  /// cannot see each other (containers).
  bool is_there() const { return memory_ != nullptr; }
  Slot& own() const { return slot(place_); }
  /// The next rank of this host that has not ended; this one when there is none.
  Slot& next() const;
  /// True for the first that asks.
  bool may_tell() const;
  /// Returns true when any rank of this host has asked.
  bool is_told() const;

 private:
  Slot& slot(int place) const;

  int size_;
  int place_;
  void* memory_ = nullptr;
  size_t bytes_;
};

/// Whether the process has ended. Zombies, which some containers never clear away, have.
bool is_gone(int64_t process);

}  // namespace meshtrain
