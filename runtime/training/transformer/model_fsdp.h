#pragma once

#include <optional>

#include "fsdp/options.h"

namespace meshtrain {

/// The division of a model's parameters among ranks.
struct ModelReplicas {
  ReplicaMap dense;                   ///< for all parameters except `experts`
  std::optional<ReplicaMap> experts;  ///< for experts cut over ep, on DeviceMesh::experts(); none when ep is 1
};

/// The options of a model's Fsdps: for `dense` parameters and for `experts`.
struct ModelFsdp {
  FsdpOptions dense;
  std::optional<FsdpOptions> experts = {};
  Group ep = {};  ///< the ranks over which the experts of a layer are cut
};

}  // namespace meshtrain
