#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/parameter_index.h"
#include "runtime/training/trainer/micro_batch.h"

namespace meshtrain {

/// A part of a model that a rank computes, with the groups of its parameters. A model is a list of parts in the order
/// of their forward, perhaps of one.
class ModelPart {
 public:
  virtual ~ModelPart() = default;

  /// Returns what the part computes for a micro-batch: the input of the next part, or, by the last part, the sum of the
  /// losses of the counted labels, a scalar. With autograd its value may be available only after the backward. `input`:
  /// the output of the part before; undefined for the first part, which reads `micro_batch`. Every rank that holds the
  /// part must call it.
  virtual at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) = 0;

  /// Returns the groups of the part's parameters, at least one, which live as long as the part. The tokens() of the
  /// first are the ranks over which losses are summed.
  virtual const std::vector<ParameterGroup>& groups() const = 0;
};

using ModelParts = std::vector<std::shared_ptr<ModelPart>>;

/// Returns the groups of all parts, in their order.
inline std::vector<ParameterGroup> groups_of(const ModelParts& parts) {
  std::vector<ParameterGroup> groups;
  for (const auto& part : parts) groups.insert(groups.end(), part->groups().begin(), part->groups().end());
  return groups;
}

/// Returns the index of a model of which every rank holds all parts.
inline ParameterIndex index_of(const ModelParts& parts) {
  std::vector<Parameter*> all;
  for (const ParameterGroup& group : groups_of(parts)) {
    for (const Unit& unit : group.fsdp->units()) {
      all.insert(all.end(), unit.parameters().begin(), unit.parameters().end());
    }
  }
  return ParameterIndex(all);
}

}  // namespace meshtrain
