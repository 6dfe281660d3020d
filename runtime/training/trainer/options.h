#pragma once

#include <cstdint>
#include <optional>

#include "runtime/training/optimizer/options.h"

namespace meshtrain {

/// The factor of the loss before the backward, for fp16.
struct LossScaleOptions {
  std::optional<double> fixed = {};  ///< key `static`: a constant scale that replaces all members below
  double initial = 65536;
  int64_t growth_interval = 2000;  ///< finite steps in a row after which the scale grows
  double growth_factor = 2;
  double backoff_factor = 0.5;  ///< factor after a skipped step
  double min = 1;
};

/// The options for training a model of any parts.
struct TrainerOptions {
  OptimizerOptions optimizer = {};
  double clip_norm = 1;                             ///< 0: no clipping
  std::optional<LossScaleOptions> loss_scale = {};  ///< factor of the loss before the backward, for fp16_mixed
  std::optional<uint64_t> rounding_seed = {};       ///< rounds the optimizer's results stochastically, for bf16 only
  bool saves_frozen = true;  ///< frozen parameters are in checkpoints; else who resumes must write their values
};

}  // namespace meshtrain
