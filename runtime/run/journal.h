#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fsdp/unit_memory.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/run/checkpoints.h"
#include "runtime/run/describe_data.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_directory.h"
#include "runtime/telemetry/metrics.h"

namespace meshtrain {

/// Of the whole model.
struct ModelSize {
  int64_t num_parameters = 0;
  int64_t num_trainable = 0;
};

/// What one rank writes of a run: its folder, its metrics, its lines on the console.
class Journal {
 public:
  /// Keeps the recipe, as run, and its plan in `directory`. Of metrics that are there only those of steps up to
  /// `last_step` stay: the run goes on behind it. Throws std::runtime_error when the folder cannot be written.
  Journal(const Recipe& recipe, const RunPlan& plan, std::unique_ptr<RunDirectory> directory, int64_t last_step);

  /// Prints the lines before the first step: the model, how the plan lays it on the mesh, in which memory.
  /// `disk_bytes`: what this rank keeps on disk.
  void announce(const ModelSize& size, const UnitMemory& memory, int64_t disk_bytes) const;
  /// What the whole run of `num_samples` reads.
  void announce(const Mixture& data, int64_t num_samples, const Evaluation* evaluation) const;
  /// Where it goes on, and what of the recipe is not as it was.
  void announce(const Resumed& resumed) const;
  /// That it begins at the first step though it was asked to resume, and what it takes the place of.
  void announce_beginning() const;
  void announce(const WrittenCheckpoint& written) const;
  /// A step: a line of metrics, and one on the console every train.log_every steps and for each that was skipped
  /// or evaluated.
  /// Throws std::runtime_error.
  void record(const StepMetrics& metrics);
  /// The step's parameters, each by itself: a line of parameters.jsonl. Throws std::runtime_error.
  void record(int64_t step, const std::vector<ParameterMetrics>& parameters);
  /// Makes durable what was recorded: before a checkpoint says that these steps are done. Throws std::runtime_error.
  void sync();
  /// Closes what steps were recorded in: none comes after it. Throws std::runtime_error.
  void finish();
  void say(const std::string& line) const;

 private:
  Recipe recipe_;
  RunPlan plan_;
  std::unique_ptr<RunDirectory> directory_;
  int64_t first_step_;
  MetricsFile metrics_;
  std::optional<ParameterMetricsFile> parameters_;  // with train.parameter_metrics
  double seconds_of_steady_steps_ = 0;
  double seconds_of_evaluation_ = 0;
};

}  // namespace meshtrain
