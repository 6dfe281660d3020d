#include "runtime/optimizer/optimizer.h"

#include "mesh/error.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/sgd.h"

namespace meshtrain {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          std::optional<StochasticRounding> rounding) {
  if (recipe.name == "adamw") return std::make_unique<AdamW>(recipe, units, rounding);
  if (recipe.name == "sgd") return std::make_unique<Sgd>(recipe, units, rounding);
  throw InputError("optimizer.name: there is no \"" + recipe.name + "\"; use adamw or sgd");
}

std::vector<DecayRange> decay_ranges(const FlatBuffer& buffer, const OptimizerRecipe& recipe) {
  std::vector<DecayRange> ranges;
  for (const Segment& segment : buffer.segments()) {
    const bool decays = recipe.decay == "all" || segment.parameter->global_shape.size() > 1;
    const double weight_decay = decays ? recipe.weight_decay : 0;
    const Range kept = buffer.in_shard({segment.offset, segment.numel});
    if (kept.numel == 0) continue;
    if (ranges.empty() || ranges.back().weight_decay != weight_decay) ranges.push_back({kept.offset, 0, weight_decay});
    ranges.back().numel = kept.offset + kept.numel - ranges.back().offset;  // padding between is zero
  }
  return ranges;
}

}  // namespace meshtrain
