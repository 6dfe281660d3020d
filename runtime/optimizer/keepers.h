#pragma once

#include <vector>

#include "mesh/group.h"

namespace meshtrain {

/// Who keeps which part of the model, for an optimizer that brings whole matrices together.
struct Keepers {
  /// What one rank keeps.
  struct Place {
    int64_t tp = 0;     ///< part of every parameter that is cut over tp
    int64_t shard = 0;  ///< of every flat buffer
    int64_t copy = 0;   ///< which of the ranks that keep the same: its rank in `copies`

    bool operator==(const Place&) const = default;
  };

  Group world;                            ///< of the mesh
  Group copies;                           ///< ranks that keep the same shard of the same part as this one
  std::vector<Place> places = {Place{}};  ///< by rank of `world`

  const Place& own() const { return places[static_cast<size_t>(world.rank())]; }
};

}  // namespace meshtrain
