#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace meshtrain {

/// The progress of a training, apart from its tensors: the same on every rank. Together with the seed it determines all
/// random draws. Step 0 is before the first: only the weights exist, everything else is as at the beginning.
struct TrainingState {
  struct LossScale {
    double value = 1;
    int64_t num_finite = 0;  ///< steps in a row since it changed
  };
  /// The numbers among which outliers are found: the oldest first, as many of each.
  struct RecentSteps {
    std::vector<double> losses, grad_norms;
  };

  int64_t step = 0;                          ///< steps done; the position in the schedule of learning rates
  int64_t num_samples = 0;                   ///< samples seen: the global index of the next one
  int64_t num_updates = 0;                   ///< updates of the optimizer: steps that were not skipped
  int64_t num_skipped = 0;                   ///< steps skipped in a row, up to the last
  std::optional<LossScale> loss_scale = {};  ///< of a loss scale that changes
  std::optional<RecentSteps> recent = {};    ///< where steps that are outliers are skipped
};

}  // namespace meshtrain
