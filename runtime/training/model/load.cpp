#include "runtime/training/model/load.h"

#include "mesh/device/aten.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/unused_weights.h"

namespace meshtrain {

PretrainedWeights::PretrainedWeights(const std::filesystem::path& folder, const ModelShape& shape)
    : shape_(shape), source_(open_weights(folder, shape)) {
  check_weights(source_, shape);
}

void PretrainedWeights::read(const Parameter& parameter) const {
  at::NoGradGuard no_grad;
  read_parts(source_, folder_parts(shape_, parameter.name, parameter.global_shape), parameter.box,
             parameter.valid().detach());
  if (parameter.name == kEmbedding) check_tied_head(source_, shape_, parameter.box);
}

}  // namespace meshtrain
