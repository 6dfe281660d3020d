#include "runtime/train/skipped_steps.h"

#include <cmath>
#include <string>

#include "mesh/agree.h"
#include "runtime/config/scalar_text.h"

namespace meshtrain {
namespace {

std::string describe(const StepMetrics& metrics) {
  return "step " + std::to_string(metrics.step) + ": loss " + std::to_string(metrics.loss) + ", gradient norm " +
         std::to_string(metrics.grad_norm) +
         (metrics.non_finite.empty() ? "; every gradient is finite by itself"
                                     : "; the first gradient that is not finite is that of " + metrics.non_finite);
}

}  // namespace

bool may_skip(const TrainRecipe& train) {
  return train.non_finite == "skip" || train.precision == "fp16_mixed";
}

void SkippedSteps::judge(const StepMetrics& metrics) {
  if (!metrics.skipped) {
    in_a_row_ = 0;
    return;
  }
  // An overflow of scaled gradients is no more than a scale that was too large; a loss knows nothing of the scale.
  const bool overflow = train_.precision == "fp16_mixed" && std::isfinite(metrics.loss);
  if (train_.non_finite != "skip" && !overflow) throw AgreedError(describe(metrics));
  if (++in_a_row_ < train_.max_skipped) return;
  throw AgreedError(describe(metrics) + "; " + std::to_string(in_a_row_) +
                    " steps in a row were skipped, as many as train.max_skipped allows" +
                    (metrics.loss_scale ? ", down to a loss scale of " + scalar_text(*metrics.loss_scale) : ""));
}

}  // namespace meshtrain
