#include "runtime/config/cpu_only.h"

namespace meshtrain {

std::string cpu_only(const Recipe& recipe) {
  const std::string& offload = recipe.parallel.fsdp.offload.to;
  if (offload != "none") return "parallel.fsdp.offload.to: " + offload;
  if (recipe.train.offload_activations) return "train.offload_activations: true";
  if (recipe.train.stochastic_rounding) return "train.stochastic_rounding: true";
  return "";
}

}  // namespace meshtrain
