#pragma once

#include <filesystem>

#include "mesh/parameter.h"
#include "runtime/safetensors/folder.h"

namespace meshtrain {

/// The weights of a Hugging Face folder, for parameters.
class PretrainedWeights {
 public:
  /// Opens the safetensors. Throws InputError when there are none, or when a file is damaged.
  explicit PretrainedWeights(const std::filesystem::path& folder);

  /// Fills this rank's part of `parameter`, reads only that part, and rounds it to the parameter's dtype. Throws
  /// InputError when the tensor is missing or has another shape. No collective.
  void read(const Parameter& parameter) const;

 private:
  std::filesystem::path folder_;
  SafetensorsFolder source_;
};

}  // namespace meshtrain
