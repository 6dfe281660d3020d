#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "mesh/backend.h"

namespace meshtrain {

/// Calls and bytes of one kind of collective on one group for one purpose.
struct Traffic {
  int64_t calls = 0;
  /// The size of the full buffer: the output of a gather, the input of a scatter or all-to-all, otherwise the tensor.
  int64_t buffer_bytes = 0;
  int64_t sent_bytes = 0;  ///< sent by this rank under a bandwidth-optimal algorithm, from the buffer and group size
};

/// Returns the traffic of one collective that rank `rank` of a group of `size` issues.
Traffic traffic_of(int rank, int size, const Collective& collective);

/// The traffic of this rank, counted where collectives are issued.
class TrafficLedger {
 public:
  struct Key {
    std::string group;
    std::string purpose;
    Collective::Kind kind;
    auto operator<=>(const Key&) const = default;
  };

  /// Counts a collective that rank `rank` of a group of `size` issues.
  void record(int rank, int size, const Collective& collective);
  /// Returns the sum of all entries that match; an empty string matches any.
  Traffic total(const std::string& group = "", const std::string& purpose = "") const;
  const std::map<Key, Traffic>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  std::map<Key, Traffic> entries_;
};

}  // namespace meshtrain
