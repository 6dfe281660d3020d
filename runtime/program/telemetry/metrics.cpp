#include "runtime/program/telemetry/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace meshtrain {
namespace {

using nlohmann::ordered_json;

ordered_json number_or_null(const std::optional<double>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}

/// Rounds to microseconds: what is less is noise, and long in a file of a million lines.
double rounded(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

ordered_json memory_of(const StepMetrics& metrics) {
  ordered_json memory = {{"host_peak_bytes", metrics.host_memory.bytes}, {"host_peak_rank", metrics.host_memory.rank}};
  if (metrics.device_allocated && metrics.device_reserved) {
    memory["device_allocated_peak_bytes"] = metrics.device_allocated->bytes;
    memory["device_reserved_peak_bytes"] = metrics.device_reserved->bytes;
    memory["device_peak_rank"] = metrics.device_allocated->rank;
  }
  return memory;
}

ordered_json seconds_of(const StepMetrics& metrics) {
  ordered_json seconds = {{"data", rounded(metrics.seconds.data)}};
  if (metrics.seconds.optimizer) seconds["optimizer"] = rounded(*metrics.seconds.optimizer);
  seconds["checkpoint"] = rounded(metrics.seconds.checkpoint);
  if (metrics.evaluation) seconds["evaluation"] = rounded(metrics.evaluation->seconds);
  if (metrics.copies) seconds["copies_exposed"] = rounded(metrics.copies->exposed);
  ordered_json& collectives = seconds["collectives"] = ordered_json::object();
  for (const auto& [group, of] : metrics.collectives) {
    const ordered_json exposed = of.exposed ? ordered_json(rounded(*of.exposed)) : ordered_json(nullptr);
    collectives[group] = {{"total", rounded(of.total)}, {"exposed", exposed}};
  }
  return seconds;
}

ordered_json experts_of(const ExpertMetrics& metrics) {
  ordered_json experts = ordered_json::object();
  if (metrics.balance_loss) experts["balance_loss"] = *metrics.balance_loss;
  if (metrics.z_loss) experts["z_loss"] = *metrics.z_loss;
  experts["load_max"] = metrics.load_max;
  experts["load_mean"] = metrics.load_mean;
  experts["unused"] = metrics.unused;
  if (metrics.dropped) experts["dropped"] = *metrics.dropped;
  return experts;
}

double number_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

CutStep cut_step(const nlohmann::json& line) {
  CutStep cut{number_at(line, "time"), number_at(line, "step_seconds")};
  if (const auto step = line.find("step"); step != line.end() && step->is_number_integer()) cut.step = *step;
  const auto seconds = line.find("seconds");
  if (seconds == line.end() || !seconds->is_object()) return cut;
  cut.data = number_at(*seconds, "data");
  cut.checkpoint = number_at(*seconds, "checkpoint");
  cut.evaluation = number_at(*seconds, "evaluation");
  const auto collectives = seconds->find("collectives");
  if (collectives == seconds->end() || !collectives->is_object()) return cut;
  for (const nlohmann::json& of : *collectives) {
    if (of.is_object()) cut.exposed += number_at(of, "exposed");
  }
  return cut;
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path file, int64_t last_step, bool records_skipped)
    : lines_(std::move(file), last_step,
             [this](const std::string& line) {
               const nlohmann::json read = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
               if (read.is_object()) cut_steps_.push_back(cut_step(read));
             }),
      records_skipped_(records_skipped) {}

void MetricsFile::append(const StepMetrics& metrics) {
  lines_.append(line_of(metrics).dump());
}

ordered_json MetricsFile::line_of(const StepMetrics& metrics) const {
  nlohmann::ordered_json entry = {{"step", metrics.step},
                                  {"loss", metrics.loss},
                                  {"grad_norm", metrics.grad_norm},
                                  {"learning_rate", metrics.learning_rate},
                                  {"tokens", metrics.tokens},
                                  {"step_seconds", metrics.step_seconds},
                                  {"tokens_per_second", metrics.tokens_per_second}};
  if (metrics.global_batch) entry["global_batch"] = *metrics.global_batch;
  if (metrics.z_loss) entry["z_loss"] = *metrics.z_loss;
  if (metrics.loss_scale) entry["loss_scale"] = *metrics.loss_scale;
  if (records_skipped_ || metrics.skipped) entry["skipped"] = metrics.skipped;
  if (!metrics.non_finite.empty()) entry["non_finite"] = metrics.non_finite;
  if (!metrics.outlier.empty()) entry["outlier"] = metrics.outlier;
  if (!metrics.no_label.empty()) entry["no_label"] = metrics.no_label;
  if (metrics.evaluation) {
    entry["eval_loss"] = metrics.evaluation->loss;
    entry["eval_tokens"] = metrics.evaluation->tokens;
    entry["eval_seconds"] = metrics.evaluation->seconds;
  }
  if (metrics.experts) entry["experts"] = experts_of(*metrics.experts);
  entry["time"] = rounded(metrics.time);
  entry["counted_tokens"] = metrics.counted_tokens;
  entry["loss_max"] = metrics.loss_max;
  entry["flops_per_rank"] = metrics.flops_per_rank;
  entry["mfu"] = number_or_null(metrics.mfu);
  entry["memory"] = memory_of(metrics);
  entry["seconds"] = seconds_of(metrics);
  ordered_json& bytes = entry["bytes"] = ordered_json::object();
  for (const auto& [group, of] : metrics.collectives) bytes[group] = std::llround(of.sent_bytes);
  if (metrics.copies) {
    entry["copied_bytes"] = {{"to_device", std::llround(metrics.copies->to_device)},
                             {"to_host", std::llround(metrics.copies->to_host)}};
  }
  return entry;
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
