#pragma once

#include <filesystem>

#include "mesh/parameter.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

/// The weights of a Hugging Face folder, for the parameters of a model.
class PretrainedWeights {
 public:
  /// Opens the safetensors of a model of this shape. Throws as open_weights() and check_weights() do.
  PretrainedWeights(const std::filesystem::path& folder, const ModelShape& shape);

  /// Fills this rank's part of `parameter`, reads only that part, and rounds it to the parameter's dtype. Throws
  /// InputError when the disk fails, and as check_tied_head() does for the part of a tied embedding. No collective.
  void read(const Parameter& parameter) const;

 private:
  ModelShape shape_;
  SafetensorsFolder source_;
};

}  // namespace meshtrain
