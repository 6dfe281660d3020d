#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/unit.h"
#include "runtime/config/recipe.h"
#include "runtime/optimizer/stochastic_rounding.h"

namespace meshtrain {

/// Updates the shards of flat buffers from those of their gradients; its state lies in buffers of the same layout.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of everything trainable. No collective: gradients are reduced and clipped already.
  virtual void step(double learning_rate) = 0;
};

/// The optimizer that the recipe names, over the trainable buffers of `units`, which must outlive it. `rounding`: of
/// weights and state in bf16; none rounds to the nearest.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          std::optional<StochasticRounding> rounding = {});

/// A range of this rank's shard of a buffer whose elements share one weight decay.
struct DecayRange {
  int64_t offset;
  int64_t numel;
  double weight_decay;
};

/// Cuts the shard that this rank keeps of a buffer into ranges, as few as possible: `decay: all` is one; `decay:
/// matrices` leaves out tensors of one dim.
std::vector<DecayRange> decay_ranges(const FlatBuffer& buffer, const OptimizerRecipe& recipe);

}  // namespace meshtrain
