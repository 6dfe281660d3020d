#include "runtime/training/optimizer/optimizer.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/training/optimizer/adamw.h"
#include "runtime/training/optimizer/muon.h"
#include "runtime/training/optimizer/sgd.h"

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

namespace {

struct Registered {
  std::string name;
  OptimizerFactory make;
};

template <class T>
Registered registered(const char* name) {
  return {name, [](const auto& options, const auto& groups, const auto& rounding) {
            return std::make_unique<T>(options, groups, rounding);
          }};
}

std::vector<Registered>& registry() {
  static std::vector<Registered> all = {registered<AdamW>("adamw"), registered<Sgd>("sgd"), registered<Muon>("muon")};
  return all;
}

const Registered* find(const std::string& name) {
  for (const Registered& each : registry()) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace

void register_optimizer(const std::string& name, OptimizerFactory make) {
  if (find(name) != nullptr) throw std::invalid_argument("an optimizer " + name + " exists already");
  registry().push_back({name, std::move(make)});
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Registered& each : registry()) names.push_back(each.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
                                          const std::optional<StochasticRounding>& rounding) {
  if (const Registered* const found = find(options.name)) return found->make(options, groups, rounding);
  std::string names;
  for (const Registered& each : registry()) names += (names.empty() ? "" : ", ") + each.name;
  throw InputError("optimizer.name", "there is no \"" + options.name + "\"; use one of " + names);
}

}  // namespace meshtrain
