#pragma once

#include <array>
#include <cstdint>

#include "mesh/flight_recorder.h"

namespace meshtrain {

/// A group of ranks, as one of its ranks sees it: GroupFlights as plain memory.
struct GroupSight {
  uint64_t key = 0;
  GroupLabel label;
  int64_t issued = 0, ended = 0;
  Flight pending = {};  ///< the first that has not ended; its times mean nothing on other hosts
};

/// A rank's communication, and the time since its last progress: plain memory, shared between processes and sent
/// between hosts.
struct Activity {
  static constexpr size_t kGroups = 40;

  int64_t still_ms = 0;     ///< since its last record of a collective or change of its phase
  int64_t usual_ms = 0;     ///< the second longest stillness that has ended, since limits were set
  int64_t halted_ms = 0;    ///< for which the process did not run, until a moment ago; 0: it ran
  bool waits = false;       ///< for collective `awaited` of group `awaited_group`
  bool is_limited = false;  ///< StallLimits are set: it trains
  bool is_stop_asked = false;
  bool is_stopped = false;     ///< the system says that its process is; others see it
  uint64_t awaited_group = 0;  ///< key
  int64_t awaited = 0;         ///< Flight::in_group
  Flight awaited_flight;       ///< that collective; it need not be the first of its group that has not ended
  GroupSight last;             ///< the group of the collective that was issued last, which is its `pending` here
  int64_t num_groups = 0;
  std::array<GroupSight, kGroups> groups;

  /// Returns collective `number` of a group of these, where it is known: the rank waits for it, or it is the first that
  /// has not ended.
  const Flight* find(const GroupSight& group, int64_t number) const {
    if (group.pending.number != 0 && group.pending.in_group == number) return &group.pending;
    const bool is_awaited = waits && group.key == awaited_group && awaited_flight.number != 0;
    return is_awaited && awaited_flight.in_group == number ? &awaited_flight : nullptr;
  }

  /// Returns the group with this key; null when it has none.
  const GroupSight* find(uint64_t key) const {
    for (int64_t i = 0; i < num_groups; ++i) {
      if (groups[static_cast<size_t>(i)].key == key) return &groups[static_cast<size_t>(i)];
    }
    return nullptr;
  }
};

/// Writes what `recorder` has into `activity`: groups, and what is awaited.
void read_flights(const FlightRecorder& recorder, Activity& activity);

}  // namespace meshtrain
