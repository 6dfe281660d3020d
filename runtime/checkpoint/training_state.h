#pragma once

#include <cstdint>
#include <optional>

namespace meshtrain {

/// How far a training has come, apart from its tensors: the same on every rank. With the seed it is the state of all
/// that is drawn too. Step 0 is before the first: there are weights alone, all else is as at a beginning.
struct TrainingState {
  struct LossScale {
    double value = 1;
    int64_t num_finite = 0;  ///< steps in a row since it changed
  };

  int64_t step = 0;                          ///< done; the place in the schedule of learning rates
  int64_t num_samples = 0;                   ///< seen: the next one is that of this global index
  int64_t num_updates = 0;                   ///< of the optimizer: steps that were not skipped
  int64_t num_skipped = 0;                   ///< steps skipped in a row, up to the last
  std::optional<LossScale> loss_scale = {};  ///< of one that changes
};

}  // namespace meshtrain
