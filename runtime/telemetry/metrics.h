#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/telemetry/json_lines.h"

namespace meshtrain {

/// The model on held-out samples.
struct EvaluationMetrics {
  double loss = 0;     ///< mean over counted tokens
  int64_t tokens = 0;  ///< that counted
  double seconds = 0;  ///< not part of a step's
};

/// One step as people look at it.
struct StepMetrics {
  int64_t step = 0;      ///< from 1
  double loss = 0;       ///< mean over counted tokens
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  ///< seen so far, this step's included
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> loss_scale = {};  ///< under fp16_mixed: of this step's backward
  bool skipped = false;                   ///< loss or gradients were not finite, and nothing was changed
  std::string non_finite = {};            ///< then: the first parameter with a gradient that is not finite, if any
  std::optional<EvaluationMetrics> evaluation = {};  ///< when the model was evaluated after it
};

/// RUN_DIR/metrics.jsonl: one JSON object a line and step, written through at once. Of one rank.
class MetricsFile {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off. `tells_skipped`: each line says whether its
  /// step was. Throws std::runtime_error.
  MetricsFile(std::filesystem::path file, int64_t last_step, bool tells_skipped = false)
      : lines_(std::move(file), last_step), tells_skipped_(tells_skipped) {}

  /// Numbers that are not finite are null. Throws std::runtime_error, naming the file, when it cannot be written (a
  /// full disk).
  void append(const StepMetrics& metrics);
  /// As JsonLines has them.
  void sync() { lines_.sync(); }
  void finish() { lines_.finish(); }
  int64_t num_cut() const { return lines_.num_cut(); }
  const std::string& missing() const { return lines_.missing(); }

 private:
  JsonLines lines_;
  bool tells_skipped_;
};

/// One parameter in one step: lengths of the whole tensor.
struct ParameterMetrics {
  std::string name;
  double grad_norm = 0;    ///< before clipping
  double weight_norm = 0;  ///< after the update
  double update_norm = 0;  ///< of what the update added
};

/// RUN_DIR/parameters.jsonl: {"step": 10, "parameters": {NAME: {"grad_norm": ...}}}, as MetricsFile.
class ParameterMetricsFile {
 public:
  ParameterMetricsFile(std::filesystem::path file, int64_t last_step) : lines_(std::move(file), last_step) {}

  void append(int64_t step, const std::vector<ParameterMetrics>& parameters);
  /// As JsonLines has them.
  void sync() { lines_.sync(); }
  void finish() { lines_.finish(); }

 private:
  JsonLines lines_;
};

}  // namespace meshtrain
