#include "fsdp/module.h"

#include <torch/nn/modules/embedding.h>

#include <map>
#include <stdexcept>

#include "mesh/base/files/glob.h"

namespace meshtrain {
namespace {

/// Returns the names of the submodules that `patterns` select, in the order of the patterns.
std::vector<std::string> selected(torch::nn::Module& module, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    const size_t before = names.size();
    for (const auto& submodule : module.named_modules("", /*include_self=*/false)) {
      if (matches(pattern, submodule.key(), '.')) names.push_back(submodule.key());
    }
    if (names.size() == before) {
      throw std::invalid_argument("unit " + pattern + ": the module has no submodule of this name");
    }
  }
  return names;
}

}  // namespace

ModuleUnits::ModuleUnits(torch::nn::Module& module, const std::vector<std::string>& units) {
  const std::vector<std::string> names = selected(module, units);
  const auto num_units = static_cast<int64_t>(names.size());
  const auto unit_of = [&](const std::string& parameter) {
    for (int64_t unit = 0; unit < num_units; ++unit) {
      if (parameter.starts_with(names[unit] + ".")) return unit;
    }
    return num_units;  // the rest
  };

  std::vector<int64_t> unit_of_parameter;
  std::map<const c10::TensorImpl*, size_t> known;
  for (const auto& named : module.named_parameters()) {
    const at::Tensor& tensor = named.value();
    const int64_t unit = unit_of(named.key());
    const auto [found, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
    if (!is_new) {
      int64_t& first = unit_of_parameter[found->second];
      if (first != unit) first = num_units;
      continue;
    }
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = named.key();
    parameter.tensor = tensor;
    parameter.shape = parameter.global_shape = tensor.sizes().vec();
    parameter.box = {std::vector<int64_t>(parameter.shape.size(), 0), parameter.shape};
    unit_of_parameter.push_back(unit);
  }

  const auto mark_embedding = [&](const torch::nn::Module& submodule) {
    at::Tensor weight;
    if (const auto* const embedding = submodule.as<torch::nn::EmbeddingImpl>()) weight = embedding->weight;
    if (const auto* const bag = submodule.as<torch::nn::EmbeddingBagImpl>()) weight = bag->weight;
    const auto found = known.find(weight.unsafeGetTensorImpl());
    if (found != known.end()) parameters_[found->second].of_tokens = true;
  };
  mark_embedding(module);
  for (const auto& submodule : module.modules(/*include_self=*/false)) mark_embedding(*submodule);
  if (parameters_.empty()) throw std::invalid_argument("the module has no parameters: there is nothing to train");

  UnitSpec rest{"the rest", {}, /*whole_step=*/true};
  for (const std::string& name : names) specs_.push_back({name, {}});
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t unit = unit_of_parameter[i];
    (unit == num_units ? rest : specs_[unit]).parameters.push_back(&parameters_[i]);
  }
  for (const UnitSpec& unit : specs_) {
    if (!unit.parameters.empty()) continue;
    for (const auto& named : module.named_parameters()) {
      if (!named.key().starts_with(unit.name + ".")) continue;
      const int64_t owner = unit_of_parameter[known.at(named.value().unsafeGetTensorImpl())];
      throw std::invalid_argument("unit " + unit.name + ": its parameters belong to " +
                                  (owner == num_units ? "several units" : "the unit " + names[owner]) +
                                  " already: leave it out");
    }
    throw std::invalid_argument("unit " + unit.name + " has no parameters: leave it out");
  }
  if (!rest.parameters.empty()) specs_.insert(specs_.begin(), std::move(rest));
}

}  // namespace meshtrain
