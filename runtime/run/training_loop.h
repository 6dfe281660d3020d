#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "runtime/checkpoint/training_state.h"
#include "runtime/run/checkpoints.h"
#include "runtime/run/journal.h"
#include "runtime/run/run.h"
#include "runtime/run/skipped_steps.h"
#include "runtime/run/stop_request.h"
#include "runtime/trainer/evaluation.h"
#include "runtime/trainer/read_ahead.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

/// Everything that the steps of a run work on.
struct Running {
  const Recipe& recipe;
  const DeviceMesh& mesh;
  const Evaluation* evaluation;  ///< null without evaluation
  Trainer& trainer;
  Checkpoints& checkpoints;
  ReadAhead<StepBatch>& batches;  ///< of the steps to come
  Journal* journal;               ///< of rank 0; null on the others
  const StopRequest& stop_request;
  std::chrono::steady_clock::time_point start;  ///< of the program: train.time_limit counts from it
};

/// The steps of a run: each is a batch, a step of the trainer, a line of metrics, and a checkpoint where one is due.
/// Every rank of the mesh constructs the same loop and calls run().
class TrainingLoop {
 public:
  /// `state`: that of the step before the first one to make.
  TrainingLoop(const Running& run, TrainingState state);

  /// Makes the steps up to train.steps, or until a rank asks to stop. Throws AgreedError for what all ranks know of;
  /// what fails on this rank alone names its step and unit.
  RunEnd run();

 private:
  using Clock = std::chrono::steady_clock;

  /// "step 7, forward of model.layers.3": the place of this rank, for messages; any thread may ask.
  std::string location() const;
  /// Runs `action`, and adds location() to the message of what goes wrong on this rank alone.
  template <class Action>
  auto locate(const Action& action) const -> decltype(action());

  /// Makes the step behind state_. Returns true when a rank has asked to stop and steps are left.
  bool make_step();
  StepRequest request() const;
  void record(const StepOutcome& outcome, const StepResult& result, const StepRequest& request, bool stops);
  /// Begins a checkpoint of state_.
  void save();
  /// Saves after the last step because an export follows, which may fail; the recipe asks for no checkpoints. A
  /// failure is reported and does not end the run.
  void save_for_export();
  void report(const std::optional<WrittenCheckpoint>& written) const;
  void say(const std::string& line) const;

  Running run_;
  TrainingState state_;
  SkippedSteps skipped_;
  std::atomic<int64_t> step_;  // the one under way
  Clock::time_point step_start_;
};

}  // namespace meshtrain
