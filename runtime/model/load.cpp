#include "runtime/model/load.h"

#include <ATen/ATen.h>

#include "mesh/error.h"
#include "runtime/model/unused_weights.h"

namespace meshtrain {

PretrainedWeights::PretrainedWeights(const std::filesystem::path& folder, const ModelShape& shape)
    : shape_(shape), source_(folder) {}

void PretrainedWeights::read(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  const TensorEntry& entry = source_.entry(parameter.name);
  if (entry.shape != parameter.global_shape) {
    throw InputError(source_.path().string() + ": tensor " + parameter.name + " has shape " +
                     describe_shape(entry.shape) + ", but config.json describes " +
                     describe_shape(parameter.global_shape));
  }
  parameter.valid().detach().copy_(source_.read(parameter.name, parameter.box));
  if (parameter.name == kEmbedding) check_tied_head(source_, shape_, parameter.box);
}

}  // namespace meshtrain
