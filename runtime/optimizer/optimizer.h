#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/unit.h"
#include "mesh/replica_map.h"
#include "runtime/optimizer/shard_tensor.h"
#include "runtime/optimizer/stochastic_rounding.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Reads a scalar on the host, which waits until a GPU has computed it; 0 on the Meta device, which computes nothing.
inline double host_value(const at::Tensor& scalar) {
  return scalar.is_meta() ? 0 : scalar.item().toDouble();
}

/// Reads a flag on the host; one that is not defined is false.
inline bool is_true(const at::Tensor& flag) {
  return flag.defined() && host_value(flag) != 0;
}

/// What an update takes besides gradients: scalars on their device, so that the host need not wait for what computes
/// them.
struct UpdateInputs {
  at::Tensor learning_rate;         ///< fp64
  at::Tensor gradient_factor = {};  ///< fp64; gradients are multiplied by it, in place or on their way into the
                                    ///< update; undefined: 1, and they stay as they are
  at::Tensor skip = {};             ///< bool; where it is true nothing is changed, gradients neither; undefined: false
};

/// Updates the shards of flat buffers from those of their gradients; its state lies in buffers of the same layout.
/// Frozen parameters have none.
class Optimizer {
 public:
  /// `units`: with something trainable.
  explicit Optimizer(const std::vector<Unit>& units);
  virtual ~Optimizer() = default;

  /// One update of everything trainable, after gradients have been reduced. Every rank must call it.
  void step(const UpdateInputs& inputs);
  void step(double learning_rate) { step(inputs_of(learning_rate)); }

  /// Inputs on the device of what is updated.
  UpdateInputs inputs_of(double learning_rate) const;

  /// Whether an update writes FlatBuffer::rounded_shard() too, of every trainable buffer that has it.
  virtual bool rounds() const { return false; }

  /// What it keeps on this rank between steps, under the names that checkpoints have.
  virtual std::vector<ShardTensor> state() const = 0;
  /// Updates made so far, without those that were skipped. Waits for the last.
  int64_t num_steps() const;
  /// state() has been written, as it was after so many steps.
  virtual void resume(int64_t num_steps);

 protected:
  /// Of step(); the update is counted already.
  virtual void update(const UpdateInputs& inputs) = 0;
  /// num_steps() as a scalar on the device, fp32 as LibTorch's optimizers have it.
  const at::Tensor& count() const { return count_; }

 private:
  at::Tensor count_;
};

/// What an optimizer needs to know besides its recipe.
struct OptimizerOptions {
  ReplicaMap replicas = {};                         ///< Muon: who holds which part of the model
  ShardMemory memory = {};                          ///< where its state lies
  std::optional<StochasticRounding> rounding = {};  ///< of weights and state in bf16; none: to the nearest
};

/// The optimizer that the recipe names, over the trainable buffers of `units`, which must outlive it. No collective.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          const OptimizerOptions& options = {});

}  // namespace meshtrain
