#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/parameter_index.h"
#include "runtime/training/trainer/micro_batch.h"

namespace meshtrain {

/// A part of a model that a rank computes, with its groups of parameters. A model is a list of one or more parts, in
/// the order of their forward.
class ModelPart {
 public:
  virtual ~ModelPart() = default;

  /// Runs the part's forward for a micro-batch. Returns the input of the next part. The last part returns a scalar, the
  /// sum of the losses of the counted labels; with autograd this sum may be available only after the backward. `input`:
  /// the output of the previous part; undefined for the first part, which reads `micro_batch`. Every rank that holds
  /// the part must call it.
  virtual at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) = 0;

  /// Returns an empty tensor with the shape, dtype and device of the previous part's output, into which this rank
  /// receives that output from another rank. The default throws std::logic_error: the part cannot follow a part on
  /// another rank.
  virtual at::Tensor make_input(const MicroBatch& micro_batch) const;

  /// Begins a step of `num_micro_batches` forwards. `scale`: a scalar, the factor of the losses' backward (loss scale).
  virtual void begin_step(const at::Tensor& /*scale*/, int64_t /*num_micro_batches*/) {}
  /// Ends the forwards and backwards of a step. Returns numbers that the trainer sums over all parts and ranks: fp64
  /// [n] with the same n everywhere, or undefined everywhere for none.
  virtual at::Tensor end_step() { return {}; }
  /// Changes state that the optimizer neither trains nor saves: call it after each update of a step. `sums`: the summed
  /// numbers of end_step(). `non_finite`: a scalar, 1 when the step must change nothing, or 0.
  virtual void update(const at::Tensor& /*sums*/, const at::Tensor& /*non_finite*/) {}

  /// Returns the groups of the part's parameters, at least one; they live as long as the part. Losses are summed over
  /// the tokens() of the first group.
  virtual const std::vector<ParameterGroup>& groups() const = 0;
};

inline at::Tensor ModelPart::make_input(const MicroBatch& /*micro_batch*/) const {
  throw std::logic_error("this part has no make_input(), which describes the input that an earlier stage sends");
}

using ModelParts = std::vector<std::shared_ptr<ModelPart>>;

/// Returns the groups of all parts, in the order of the parts.
inline std::vector<ParameterGroup> groups_of(const ModelParts& parts) {
  std::vector<ParameterGroup> groups;
  for (const auto& part : parts) groups.insert(groups.end(), part->groups().begin(), part->groups().end());
  return groups;
}

/// Returns the parameter index of a model whose parts every rank holds.
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
