#pragma once

#include <optional>

#include "fsdp/options.h"

namespace meshtrain {

/// The division of a model's parameters among ranks.
struct ModelReplicas {
  ReplicaMap dense;                   ///< of all parameters but those of `experts`
  std::optional<ReplicaMap> experts;  ///< of experts that are cut over ep, on DeviceMesh::experts(); none: ep is 1
};

/// The options for the Fsdps of a model, of `dense` parameters and of `experts`.
struct ModelFsdp {
  FsdpOptions dense;
  std::optional<FsdpOptions> experts = {};
  Group ep = {};  ///< the ranks over which the experts of a layer are cut
};

}  // namespace meshtrain
