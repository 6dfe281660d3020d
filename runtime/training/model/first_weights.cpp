#include "runtime/training/model/first_weights.h"

#include "runtime/training/model/initialize.h"

namespace meshtrain {

FirstWeights::FirstWeights(const std::filesystem::path& folder, const ModelShape& shape, uint64_t seed) : seed_(seed) {
  if (!folder.empty()) pretrained_.emplace(folder, shape);
}

void FirstWeights::read(const Parameter& parameter) const {
  if (pretrained_ && !is_adapter(parameter.name)) {
    pretrained_->read(parameter);
  } else {
    initialize(parameter, seed_);
  }
}

}  // namespace meshtrain
