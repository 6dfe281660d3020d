#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program/telemetry/json_lines.h"
#include "runtime/training/metrics/step_metrics.h"

namespace meshtrain {

/// A step whose line was cut off because the run continues before it, and the seconds that it took.
struct CutStep {
  double time = 0;  ///< StepMetrics::time; 0: not stated
  double step_seconds = 0, data = 0, exposed = 0, checkpoint = 0, evaluation = 0;
  int64_t step = 0;
};

/// RUN_DIR/metrics.jsonl: a file of JSON objects, one a line and step; each is written at once. One rank writes it.
class MetricsFile {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off. `records_skipped`: each line says whether
  /// its step was skipped. Throws std::runtime_error.
  MetricsFile(std::filesystem::path file, int64_t last_step, bool records_skipped = false);

  /// Appends a line. Numbers that are not finite become null. Throws std::runtime_error, naming the file, when it
  /// cannot be written (a full disk).
  void append(const StepMetrics& metrics);
  /// Returns what append() writes.
  nlohmann::ordered_json line_of(const StepMetrics& metrics) const;
  /// Call the functions of JsonLines.
  void sync() { lines_.sync(); }
  void finish() { lines_.finish(); }
  int64_t num_cut() const { return lines_.num_cut(); }
  const std::string& missing() const { return lines_.missing(); }
  /// Returns the steps of the lines that the constructor cut off.
  const std::vector<CutStep>& cut_steps() const { return cut_steps_; }

 private:
  std::vector<CutStep> cut_steps_;
  JsonLines lines_;
  bool records_skipped_;
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
