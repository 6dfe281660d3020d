#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/telemetry/json_lines.h"

namespace meshtrain {

/// The result of an evaluation on held-out samples.
struct EvaluationMetrics {
  double loss = 0;     ///< mean over counted tokens
  int64_t tokens = 0;  ///< counted tokens
  double seconds = 0;  ///< duration; not part of a step's time
};

/// The measurements of one step.
struct StepMetrics {
  int64_t step = 0;      ///< from 1
  double loss = 0;       ///< mean over counted tokens
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  ///< tokens seen so far, this step's included
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> loss_scale = {};  ///< under fp16_mixed: of this step's backward
  bool skipped = false;                   ///< loss or gradients were not finite, and nothing was updated
  std::string non_finite = {};  ///< when skipped: the first parameter with a gradient that is not finite, if any
  std::optional<EvaluationMetrics> evaluation = {};  ///< present when the model was evaluated after this step
};

/// RUN_DIR/metrics.jsonl: a file of JSON objects, one a line and step; each is written at once. One rank writes it.
class MetricsFile {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off. `records_skipped`: each line says whether
  /// its step was skipped. Throws std::runtime_error.
  MetricsFile(std::filesystem::path file, int64_t last_step, bool records_skipped = false)
      : lines_(std::move(file), last_step), records_skipped_(records_skipped) {}

  /// Appends a line. Numbers that are not finite become null. Throws std::runtime_error, naming the file, when it
  /// cannot be written (a full disk).
  void append(const StepMetrics& metrics);
  /// Call the functions of JsonLines.
  void sync() { lines_.sync(); }
  void finish() { lines_.finish(); }
  int64_t num_cut() const { return lines_.num_cut(); }
  const std::string& missing() const { return lines_.missing(); }

 private:
  JsonLines lines_;
  bool records_skipped_;
};

/// The measurements of one parameter in one step: norms of the complete tensor.
struct ParameterMetrics {
  std::string name;
  double grad_norm = 0;    ///< before clipping
  double weight_norm = 0;  ///< after the update
  double update_norm = 0;  ///< of the change by the update
};

/// RUN_DIR/parameters.jsonl: lines {"step": 10, "parameters": {NAME: {"grad_norm": ...}}}, as those of MetricsFile.
class ParameterMetricsFile {
 public:
  ParameterMetricsFile(std::filesystem::path file, int64_t last_step) : lines_(std::move(file), last_step) {}

  void append(int64_t step, const std::vector<ParameterMetrics>& parameters);
  /// Call the functions of JsonLines.
  void sync() { lines_.sync(); }
  void finish() { lines_.finish(); }

 private:
  JsonLines lines_;
};

}  // namespace meshtrain
