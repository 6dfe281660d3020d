#include "runtime/optimizer/optimizer.h"

#include "mesh/error.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/muon.h"
#include "runtime/optimizer/sgd.h"

namespace meshtrain {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe, const std::vector<Unit>& units,
                                          const OptimizerOptions& options) {
  if (recipe.name == "adamw") return std::make_unique<AdamW>(recipe, units, options);
  if (recipe.name == "sgd") return std::make_unique<Sgd>(recipe, units, options);
  if (recipe.name == "muon") return std::make_unique<Muon>(recipe, units, options);
  throw InputError("optimizer.name: there is no \"" + recipe.name + "\"; use adamw, sgd or muon");
}

}  // namespace meshtrain
