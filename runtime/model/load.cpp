#include "runtime/model/load.h"

#include <ATen/ATen.h>

#include "mesh/error.h"
#include "runtime/model/folder_tensors.h"
#include "runtime/model/unused_weights.h"

namespace meshtrain {

PretrainedWeights::PretrainedWeights(const std::filesystem::path& folder, const ModelShape& shape)
    : shape_(shape), source_(folder) {}

void PretrainedWeights::read(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  const FolderTensor stored = folder_tensor(shape_, parameter.name, parameter.global_shape);
  const TensorEntry& entry = source_.entry(stored.name);
  if (entry.shape != stored.shape) {
    throw InputError(source_.path().string() + ": tensor " + stored.name + " has shape " + describe_shape(entry.shape) +
                     ", but config.json describes " + describe_shape(stored.shape));
  }
  parameter.valid().detach().copy_(source_.read(stored.name, stored.within(parameter.box)));
  if (parameter.name == kEmbedding) check_tied_head(source_, shape_, parameter.box);
}

}  // namespace meshtrain
