#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "mesh/parameter.h"
#include "runtime/training/model/load.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The weights that a training begins with: those of a Hugging Face folder, or drawn ones. Adapters are those of
/// adapter.from, or drawn ones.
class FirstWeights {
 public:
  /// `folder`: empty for drawn weights. Throws as PretrainedWeights and PeftWeights do.
  FirstWeights(const std::filesystem::path& folder, const ModelShape& shape, uint64_t seed);

  /// Fills this rank's part of `parameter`. Throws as their read() do. No collective.
  void read(const Parameter& parameter) const;

 private:
  std::optional<PretrainedWeights> pretrained_;
  std::optional<PeftWeights> adapters_;
  uint64_t seed_;
};

}  // namespace meshtrain
