#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fsdp/fsdp.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/run/describe_data.h"
#include "runtime/program/run/resume.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/telemetry/goodput.h"
#include "runtime/program/telemetry/metrics.h"
#include "runtime/program/telemetry/step_pace.h"
#include "runtime/program/telemetry/tensorboard.h"
#include "runtime/training/trainer/checkpoints.h"

namespace meshtrain {

/// The size of the complete model.
struct ModelSize {
  int64_t num_parameters = 0;
  int64_t num_trainable = 0;
};

/// The output of one rank: run directory, metrics and console lines.
class Journal {
 public:
  /// Writes the recipe as run, its decisions and `hosts`, the name of each rank's host, to `directory`. Removes the
  /// metrics of steps after `last_step`, from which the run continues. Throws std::runtime_error when the folder cannot
  /// be written.
  Journal(const Recipe& recipe, const Decisions& decisions, const std::vector<std::string>& hosts,
          std::unique_ptr<RunDirectory> directory, int64_t last_step);

  /// Prints the lines before the first step: the model, its layout on the mesh, and the memory of `fsdp`. Writes the
  /// start to events.jsonl.
  void announce(const ModelSize& size, const Fsdp& fsdp) const;
  /// Prints which data the run reads from its first step to its last, `num_samples` samples.
  void announce(const Mixture& data, int64_t num_samples, const Evaluation* evaluation) const;
  /// Prints where the run resumes, and which keys of the recipe have changed.
  void announce(const ResumePoint& resumed) const;
  /// Prints that the run begins at the first step although --resume was given, and which metrics it replaces.
  void announce_beginning() const;
  void announce(const WrittenCheckpoint& written) const;
  /// Records a step: a line of metrics, and a line on the console every train.log_every steps and for each step that
  /// was skipped or evaluated. Throws std::runtime_error.
  void record(const StepMetrics& metrics);
  /// Records the measurements of each parameter at `step`, a line of parameters.jsonl. Throws std::runtime_error.
  void record(int64_t step, const std::vector<ParameterMetrics>& parameters);
  /// Makes the recorded lines durable. Call before a checkpoint of these steps is written. Throws std::runtime_error.
  void sync();
  /// Closes the files. Call after the last step. Throws std::runtime_error.
  void finish();
  /// Returns the name of each rank's host.
  const std::vector<std::string>& hosts() const { return hosts_; }
  /// Accounts in goodput.jsonl for the time since the last call, or since the last recorded step.
  void account(const std::string& part) { goodput_.account(part); }
  /// Prints that the run stops on request, and keeps it in events.jsonl. `signal`: as append_stopped() takes it.
  void announce_stop(int signal) const;
  /// Ends this start in goodput.jsonl, and in events.jsonl unless announce_stop() has: "done" or "stopped". Without it
  /// the start has failed.
  void end(const std::string& how);

 private:
  /// Logs a warning when an event could not be written.
  void keep(const std::string& problem) const;

  Recipe recipe_;
  Decisions decisions_;
  std::vector<std::string> hosts_;
  std::unique_ptr<RunDirectory> directory_;
  int64_t first_step_;
  int64_t last_step_;  // that was recorded, or continued from
  MetricsFile metrics_;
  std::optional<TensorBoardFile> tensorboard_;      // null without train.tensorboard
  GoodputFile goodput_;                             // after metrics_, which know the lost steps
  std::optional<ParameterMetricsFile> parameters_;  // null without train.parameter_metrics
  StepPace pace_;
  double seconds_of_evaluation_ = 0;
};

}  // namespace meshtrain
