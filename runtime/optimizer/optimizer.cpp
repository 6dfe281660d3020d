#include "runtime/optimizer/optimizer.h"

#include <ATen/ATen.h>

#include "mesh/error.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/muon.h"
#include "runtime/optimizer/sgd.h"

namespace meshtrain {

Optimizer::Optimizer(const std::vector<ParameterGroup>& groups)
    : count_(
          at::zeros({}, groups.at(0).fsdp->units().at(0).buffers().at(0).shard_values().options().dtype(at::kFloat))) {}

void Optimizer::step(const UpdateInputs& inputs) {
  const at::NoGradGuard no_grad;
  if (inputs.skip.defined()) {
    count_.add_(inputs.skip.eq(false));
  } else {
    count_.add_(1);
  }
  update(inputs);
}

UpdateInputs Optimizer::inputs_of(double learning_rate) const {
  return {at::full({}, learning_rate, count_.options().dtype(at::kDouble))};
}

int64_t Optimizer::num_steps() const {
  return static_cast<int64_t>(host_value(count_));
}

void Optimizer::resume(int64_t num_steps) {
  count_.fill_(num_steps);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                                          const std::optional<StochasticRounding>& rounding) {
  if (options.name == "adamw") return std::make_unique<AdamW>(options, groups, rounding);
  if (options.name == "sgd") return std::make_unique<Sgd>(options, groups, rounding);
  if (options.name == "muon") return std::make_unique<Muon>(options, groups, rounding);
  throw InputError("optimizer.name", "there is no \"" + options.name + "\"; use adamw, sgd or muon");
}

}  // namespace meshtrain
