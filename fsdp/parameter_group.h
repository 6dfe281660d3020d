#pragma once

#include <stdexcept>
#include <vector>

#include "fsdp/fsdp.h"
#include "mesh/replica_map.h"

namespace meshtrain {

/// A group of parameters that are divided over ranks alike. A rank has one or more groups, in the same order on all
/// ranks that hold the same part of the model.
struct ParameterGroup {
  Fsdp* fsdp;           ///< must outlive this
  ReplicaMap replicas;  ///< which rank holds and owns which part of the group's parameters
};

/// Returns the device on which the layers use the parameters of `groups`.
inline at::Device device_of(const std::vector<ParameterGroup>& groups) {
  return device_of(groups.at(0).fsdp->units());
}

/// Returns the group in `groups` that `buffer` belongs to. Throws std::out_of_range when there is none.
inline const ParameterGroup& group_of(const FlatBuffer& buffer, const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    for (const Unit& unit : group.fsdp->units()) {
      for (const FlatBuffer& own : unit.buffers()) {
        if (&own == &buffer) return group;
      }
    }
  }
  throw std::out_of_range("the buffer belongs to none of the parameter groups");
}

/// Returns the trainable buffers of all groups, in the order of the groups.
inline std::vector<const FlatBuffer*> trainable_buffers(const std::vector<ParameterGroup>& groups) {
  std::vector<const FlatBuffer*> all;
  for (const ParameterGroup& group : groups) {
    const std::vector<const FlatBuffer*> own = trainable_buffers(group.fsdp->units());
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace meshtrain
