#pragma once

#include <cstdint>
#include <filesystem>

namespace meshtrain {

/// One step as people look at it.
struct StepMetrics {
  int64_t step = 0;      ///< from 1
  double loss = 0;       ///< mean over counted tokens
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  ///< seen so far, this step's included
  double step_seconds = 0;
  double tokens_per_second = 0;
};

/// RUN_DIR/metrics.jsonl: one JSON object a line and step, written through at once. Of one rank.
class MetricsFile {
 public:
  /// Opens `file` to append; lines of steps after `last_step` are cut off. Throws std::runtime_error.
  MetricsFile(std::filesystem::path file, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Throws std::runtime_error, naming the file, when it cannot be written (a full disk).
  void append(const StepMetrics& metrics);

 private:
  std::filesystem::path file_;
  int descriptor_;
};

}  // namespace meshtrain
