#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device/memory.h"
#include "mesh/device_mesh.h"
#include "runtime/program/forecast/forecast.h"

namespace meshtrain {

/// A comparison of this rank's first ten steps with the forecast. One rank of a run has one.
class Prediction {
 public:
  static constexpr int kSteps = 10;

  /// Takes the forecast of the rank's step and begins to count memory of the host, so construct it before the trainer.
  /// `host_ranks`: number of ranks on a host. `device_peak`: reads a GPU's peak; null on a CPU. `file`: see write().
  Prediction(StepForecast step, const DeviceMesh& mesh, int64_t host_ranks, std::function<DevicePeak()> device_peak,
             std::filesystem::path file);

  /// Counts the copy from which checkpoints are written, `bytes` of host memory from the first one on, `num_steps`
  /// steps from here.
  void count_copy(int64_t bytes, int64_t num_steps);
  /// Returns the forecast in one line.
  std::string text() const;
  /// Records a step's seconds. After the tenth step of this start returns a line with forecast and measurements, else
  /// an empty text.
  std::string observe(double step_seconds);
  /// Writes `file`, a JSON object: the forecast and, after the tenth step, the measurements. Throws as OutputFile does.
  void write() const;

 private:
  int64_t memory() const;
  /// Returns the forecast of the memory for the first kSteps steps, in bytes.
  int64_t planned_memory() const { return step_.memory().total() + early_copy_; }
  std::string rates() const;
  double median_seconds() const;

  const DeviceMesh& mesh_;
  int64_t host_ranks_;
  std::function<DevicePeak()> device_peak_;
  StepForecast step_;
  int64_t early_copy_ = 0, later_copy_ = 0;  // bytes for checkpoints, within the first kSteps steps and after them
  int64_t live_before_ = 0;
  int64_t sent_before_ = 0;  // up to the last step
  int64_t sent_ = 0;         // the least of a step
  std::vector<double> seconds_;
  int64_t measured_memory_ = 0;  // after the tenth step
  std::filesystem::path file_;
};

}  // namespace meshtrain
