#include "mesh/parameter_index.h"

#include <stdexcept>

namespace meshtrain {

ParameterIndex::ParameterIndex(const std::vector<Parameter*>& declared) {
  for (const Parameter* parameter : declared) {
    if (!numbers_.try_emplace(parameter->name, entries_.size()).second) {
      throw std::invalid_argument("the model declares " + parameter->name + " twice");
    }
    const at::Tensor& leaf = parameter->tensor;
    entries_.push_back({parameter->name, parameter->global_shape, leaf.scalar_type(), leaf.requires_grad()});
  }
}

size_t ParameterIndex::number(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) throw std::out_of_range("the model declares no parameter " + name);
  return found->second;
}

}  // namespace meshtrain
