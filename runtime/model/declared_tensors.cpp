#include "runtime/model/declared_tensors.h"

#include "runtime/model/transformer.h"

namespace meshtrain {

std::vector<TensorEntry> declared_tensors(const ModelShape& shape, at::ScalarType dtype) {
  Transformer model(shape, {}, at::TensorOptions(at::kMeta));
  std::vector<TensorEntry> tensors;
  for (const Parameter* parameter : model.parameters()) {
    tensors.push_back({parameter->name, dtype, parameter->global_shape});
  }
  return tensors;
}

}  // namespace meshtrain
