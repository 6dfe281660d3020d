#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

/// The rule by which a step is left out whose loss or gradient norm is an outlier (Outliers).
struct OutlierOptions {
  int64_t window = 128;  ///< number of steps before it that it is compared with; at least 6
  double sigma = 6;      ///< standard deviations above their mean
};

/// The options for training a model of any parts.
struct TrainerOptions {
  OptimizerOptions optimizer = {};
  double clip_norm = 1;                              ///< 0: no clipping
  std::optional<LossScaleOptions> loss_scale = {};   ///< factor of the loss before the backward, for fp16_mixed
  std::optional<OutlierOptions> skip_outliers = {};  ///< skips steps that are outliers
  std::optional<uint64_t> rounding_seed = {};        ///< rounds the optimizer's results stochastically, for bf16 only
  /// Globs for the frozen parameters that are in checkpoints. Who resumes must write the values of others.
  std::vector<std::string> saved_frozen = {"*"};
};

}  // namespace meshtrain
