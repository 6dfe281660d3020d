#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "mesh/parameter.h"
#include "runtime/training/model/load.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The weights that a training begins with: those of a Hugging Face folder, or drawn ones. Adapters are always drawn.
class FirstWeights {
 public:
  /// `folder`: empty for drawn weights. Throws as PretrainedWeights does.
  FirstWeights(const std::filesystem::path& folder, const ModelShape& shape, uint64_t seed);

  /// Fills this rank's part of `parameter`. Throws as PretrainedWeights::read(). No collective.
  void read(const Parameter& parameter) const;

 private:
  std::optional<PretrainedWeights> pretrained_;
  uint64_t seed_;
};

}  // namespace meshtrain
