#pragma once

#include <memory>
#include <vector>

#include "fsdp/unit.h"
#include "runtime/config/recipe.h"
#include "runtime/optimizer/keepers.h"

namespace meshtrain {

/// Updates the shards of flat buffers from those of their gradients, which it leaves as they are; its state lies in
/// buffers of the same layout. Frozen parameters have none.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of everything trainable, after gradients have been reduced and clipped. Every rank must call it.
  virtual void step(double learning_rate) = 0;
};

/// The optimizer that the recipe names, over the trainable buffers of `units`, which must outlive it. Its state lies
/// in `memory`. No collective.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          const Keepers& keepers = {}, const ShardMemory& memory = {});

}  // namespace meshtrain
