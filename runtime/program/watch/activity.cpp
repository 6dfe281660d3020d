#include "runtime/program/watch/activity.h"

#include <algorithm>

namespace meshtrain {
namespace {

GroupSight sight_of(const GroupFlights& group, const Flight& pending) {
  return {group.key, label_of(group), group.issued, group.ended, pending};
}

/// Returns the first collective of a device that has not ended, if any. Hosts do not wait for those; a device, which
/// waits in the order of issue, waits for this one first.
std::optional<Flight> first_on_device(const std::vector<GroupFlights>& groups) {
  std::optional<Flight> first;
  for (const GroupFlights& group : groups) {
    const Flight& pending = group.pending;
    if (pending.number == 0 || !pending.on_device || (first && first->number < pending.number)) continue;
    first = pending;
  }
  return first;
}

}  // namespace

void read_flights(const FlightRecorder& recorder, Activity& activity) {
  // Before the groups, of which the other thread may make more meanwhile.
  std::optional<Flight> awaited = recorder.awaited();
  const std::optional<Flight> last = recorder.last();
  const std::vector<GroupFlights> groups = recorder.groups();
  const auto key_of = [&](const Flight& flight) { return groups[static_cast<size_t>(flight.group)].key; };
  activity.num_groups = 0;
  const auto add = [&](bool pending) {
    for (const GroupFlights& group : groups) {
      const auto next = static_cast<size_t>(activity.num_groups);
      if ((group.pending.number != 0) != pending || next == Activity::kGroups) continue;
      activity.groups[next] = sight_of(group, group.pending);
      ++activity.num_groups;
    }
  };
  add(true);  // these first, where there are more groups than room
  add(false);

  if (!awaited) awaited = first_on_device(groups);
  activity.waits = awaited.has_value();
  if (awaited) {
    activity.awaited_group = key_of(*awaited);
    activity.awaited = awaited->in_group;
    activity.awaited_flight = *awaited;
  }
  if (last) {
    activity.last = sight_of(groups[static_cast<size_t>(last->group)], *last);
  }
}

}  // namespace meshtrain
