#include "runtime/program/telemetry/console.h"

#include <fmt/format.h>

#include <cmath>

namespace meshtrain {

std::string console_line(const StepMetrics& metrics, int64_t num_steps, double eta_seconds) {
  if (!metrics.no_label.empty()) {
    return fmt::format("step {:>{}}/{}  skipped: no label of it counts: {}{}", metrics.step,
                       std::to_string(num_steps).size(), num_steps, metrics.no_label,
                       metrics.evaluation ? fmt::format("  eval loss {:.4f}", metrics.evaluation->loss) : "");
  }
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {} tok/s  eta {}", metrics.step,
                  std::to_string(num_steps).size(), num_steps, metrics.loss, metrics.grad_norm, metrics.learning_rate,
                  with_separators(std::llround(metrics.tokens_per_second)), duration(eta_seconds));
  if (metrics.z_loss) line += fmt::format("  z loss {:.4f}", *metrics.z_loss);
  if (metrics.experts) {
    line += fmt::format("  load {:.2f}", metrics.experts->load_max);
    if (metrics.experts->balance_loss) line += fmt::format("  balance {:.4f}", *metrics.experts->balance_loss);
  }
  if (metrics.evaluation) line += fmt::format("  eval loss {:.4f}", metrics.evaluation->loss);
  if (!metrics.skipped) return line;
  if (!metrics.outlier.empty()) return line + "  skipped, an outlier: " + metrics.outlier;
  line += metrics.non_finite.empty() ? "  skipped: the loss is not finite"
                                     : "  skipped: the gradient of " + metrics.non_finite + " is not finite";
  if (metrics.loss_scale) line += fmt::format(" with loss scale {:g}", *metrics.loss_scale);
  return line;
}

}  // namespace meshtrain
