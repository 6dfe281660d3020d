#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/unit.h"
#include "runtime/config/recipe.h"
#include "runtime/optimizer/keepers.h"
#include "runtime/optimizer/shard_tensor.h"
#include "runtime/optimizer/stochastic_rounding.h"

namespace meshtrain {

/// Updates the shards of flat buffers from those of their gradients; its state lies in buffers of the same layout.
/// Frozen parameters have none.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of everything trainable, after gradients have been reduced. Every rank must call it.
  /// `gradient_factor`: an fp64 scalar on their device that gradients are multiplied by, in place or on their way into
  /// the update; undefined: 1, and they stay as they are.
  virtual void step(double learning_rate, const at::Tensor& gradient_factor) = 0;
  void step(double learning_rate) { step(learning_rate, at::Tensor()); }

  /// What it keeps on this rank between steps, under the names that checkpoints have.
  virtual std::vector<ShardTensor> state() const = 0;
  /// Steps made so far.
  int64_t num_steps() const { return num_steps_; }
  /// state() has been written, as it was after so many steps.
  virtual void resume(int64_t num_steps) { num_steps_ = num_steps; }

 protected:
  int64_t num_steps_ = 0;
};

/// What an optimizer needs to know besides its recipe.
struct OptimizerOptions {
  Keepers keepers = {};                             ///< Muon: who keeps which part of the model
  ShardMemory memory = {};                          ///< where its state lies
  std::optional<StochasticRounding> rounding = {};  ///< of weights and state in bf16; none: to the nearest
};

/// The optimizer that the recipe names, over the trainable buffers of `units`, which must outlive it. No collective.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          const OptimizerOptions& options = {});

}  // namespace meshtrain
