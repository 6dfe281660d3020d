#include "runtime/telemetry/metrics.h"

#include <nlohmann/json.hpp>

namespace meshtrain {

void MetricsFile::append(const StepMetrics& metrics) {
  nlohmann::ordered_json entry = {{"step", metrics.step},
                                  {"loss", metrics.loss},
                                  {"grad_norm", metrics.grad_norm},
                                  {"learning_rate", metrics.learning_rate},
                                  {"tokens", metrics.tokens},
                                  {"step_seconds", metrics.step_seconds},
                                  {"tokens_per_second", metrics.tokens_per_second}};
  if (metrics.loss_scale) entry["loss_scale"] = *metrics.loss_scale;
  if (records_skipped_) entry["skipped"] = metrics.skipped;
  if (!metrics.non_finite.empty()) entry["non_finite"] = metrics.non_finite;
  if (metrics.evaluation) {
    entry["eval_loss"] = metrics.evaluation->loss;
    entry["eval_tokens"] = metrics.evaluation->tokens;
    entry["eval_seconds"] = metrics.evaluation->seconds;
  }
  lines_.append(entry.dump());
}

void ParameterMetricsFile::append(int64_t step, const std::vector<ParameterMetrics>& parameters) {
  nlohmann::ordered_json each;
  for (const ParameterMetrics& of : parameters) {
    each[of.name] = {{"grad_norm", of.grad_norm}, {"weight_norm", of.weight_norm}, {"update_norm", of.update_norm}};
  }
  const nlohmann::ordered_json entry = {{"step", step}, {"parameters", each}};
  lines_.append(entry.dump());
}

}  // namespace meshtrain
