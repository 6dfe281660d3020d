#include "runtime/training/model/first_weights.h"

#include "runtime/training/model/initialize.h"

namespace meshtrain {

FirstWeights::FirstWeights(const std::filesystem::path& folder, const ModelShape& shape, uint64_t seed) : seed_(seed) {
  if (!folder.empty()) pretrained_.emplace(folder, shape);
  if (!shape.adapter.from.empty()) adapters_.emplace(shape.adapter.from, shape);
}

void FirstWeights::read(const Parameter& parameter) const {
  if (adapters_ && adapters_->read(parameter)) return;
  if (pretrained_ && !is_adapter(parameter.name)) {
    pretrained_->read(parameter);
    if (adapters_) adapters_->check_base(parameter);
  } else {
    initialize(parameter, seed_);
  }
}

}  // namespace meshtrain
