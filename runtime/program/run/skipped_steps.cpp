#include "runtime/program/run/skipped_steps.h"

#include <cmath>

#include "mesh/agree.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

std::string number(double value) {
  return std::isnan(value) ? "nan" : std::to_string(value);
}

std::string describe(const StepMetrics& metrics) {
  return "step " + std::to_string(metrics.step) + ": loss " + number(metrics.loss) + ", gradient norm " +
         number(metrics.grad_norm) +
         (metrics.non_finite.empty() ? "; every gradient is finite by itself"
                                     : "; the first gradient that is not finite is that of " + metrics.non_finite);
}

}  // namespace

bool may_skip(const TrainRecipe& train, bool scales_loss) {
  return train.non_finite == "skip" || scales_loss || train.skip_outliers.has_value();
}

void SkippedSteps::judge(const StepMetrics& metrics) {
  if (!metrics.skipped) {
    has_trained_ = true;
    in_a_row_ = 0;
    return;
  }
  if (!metrics.no_label.empty()) {
    ++num_without_label_;
    return;
  }
  if (!metrics.outlier.empty()) return;  // recorded outliers widen the bounds: they end by themselves
  // An overflow of scaled gradients only means that the scale was too large; the loss does not depend on the scale.
  const bool overflow = scales_loss_ && std::isfinite(metrics.loss);
  if (train_.non_finite != "skip" && !overflow) {
    throw AgreedError(describe(metrics) + "; " + advice() + ", or skip such steps with train.non_finite: skip");
  }
  if (++in_a_row_ < train_.max_skipped) return;
  throw AgreedError(describe(metrics) + "; " + std::to_string(in_a_row_) +
                    " steps in a row were skipped, as many as train.max_skipped allows" +
                    (metrics.loss_scale ? ", with a final loss scale of " + scalar_text(*metrics.loss_scale) : "") +
                    ": " + advice());
}

void SkippedSteps::finish() const {
  if (has_trained_ || (in_a_row_ == 0 && num_without_label_ == 0)) return;
  if (in_a_row_ == 0) {
    throw AgreedError("no label of any of the " + std::to_string(num_without_label_) +
                      " steps counted: nothing was trained; look at data.loss_mask, data.ignore_id and "
                      "data.boundary_labels, or use data.shuffle: true");
  }
  throw AgreedError("every one of the " + std::to_string(in_a_row_) +
                    " steps was skipped, because its loss or gradients were not finite: nothing was trained; " +
                    advice());
}

std::string SkippedSteps::advice() const {
  const std::string rate = "lower optimizer.learning_rate or lengthen schedule.warmup_steps";
  if (!scales_loss_) return rate;
  const bool is_static = train_.loss_scale && train_.loss_scale->fixed;
  return std::string("lower train.loss_scale.") + (is_static ? "static" : "initial") + ", or " + rate;
}

}  // namespace meshtrain
