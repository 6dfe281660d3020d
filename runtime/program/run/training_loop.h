#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "runtime/program/profile/step_profile.h"
#include "runtime/program/run/journal.h"
#include "runtime/program/run/prediction.h"
#include "runtime/program/run/run.h"
#include "runtime/program/run/skipped_steps.h"
#include "runtime/program/run/step_meter.h"
#include "runtime/program/run/stop_request.h"
#include "runtime/program/run/stragglers.h"
#include "runtime/program/watch/stall_limits.h"
#include "runtime/training/checkpoint/training_state.h"
#include "runtime/training/data/mixture.h"
#include "runtime/training/trainer/checkpoints.h"
#include "runtime/training/transformer/evaluation.h"
#include "runtime/training/transformer/read_ahead.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {

/// The objects that the steps of a run work on.
struct StepContext {
  const Recipe& recipe;
  const DeviceMesh& mesh;
  const Mixture& data;
  const Evaluation* evaluation;  ///< null without evaluation
  TransformerTrainer& trainer;
  Checkpoints& checkpoints;
  ReadAhead<StepBatch>& batches;  ///< batches of the next steps
  Journal* journal;               ///< on rank 0; null on other ranks
  const StopRequest& stop_request;
  std::chrono::steady_clock::time_point start;  ///< start of the program; train.time_limit counts from it
  std::function<DevicePeak()> device_peak;      ///< null on a CPU
  StepProfile& profile;
  Prediction* prediction;  ///< on rank 0 of a run of enough steps; else null
};

/// The steps of a run: each has a batch, a step of the trainer, a line of metrics, and a checkpoint when one is due.
/// Every rank of the mesh constructs the same loop and calls run().
class TrainingLoop {
 public:
  /// Starts from `state`, that of the step before the first one to make.
  TrainingLoop(const StepContext& run, TrainingState state);

  /// Makes the steps up to train.steps, or until a rank requests a stop. Throws AgreedError for an error that all ranks
  /// know; the error of one rank alone names its step and unit.
  RunEnd run();

 private:
  using Clock = std::chrono::steady_clock;

  /// Describes what this rank is doing, for messages: "step 7, forward of model.layers.3". Any thread may call it.
  std::string location() const;
  /// Runs `action`, and adds location() to the message of an error on this rank alone.
  template <class Action>
  auto locate(const Action& action) const -> decltype(action());

  /// Makes the step after state_. Returns true when a rank has requested a stop and steps are left.
  bool make_step();
  /// Says once that inputs have the model's padding token, whose row is trained.
  void mention_padding(int64_t count);
  StepBatch read_batch();
  /// Continues a checkpoint that is being written, and completes it.
  void advance_checkpoint();
  std::optional<WrittenCheckpoint> finish_checkpoint();
  StepRequest request() const;
  struct MadeStep {
    int64_t own_counted = 0, num_counted = 0;  // labels that count: of this rank, of all
    int64_t global_batch = 0;
    StepRequest asked;
    StepResult result;
  };
  /// Returns true, on every rank alike, when a request to stop ended the evaluation after the step. `outcome`: null for
  /// a step that was skipped because none of its labels counts.
  bool record(const StepOutcome* outcome, const MadeStep& made, bool stops);
  /// Begins a checkpoint of state_.
  void save();
  /// Saves after the last step because an export follows, which may fail, while the recipe asks for no checkpoints.
  /// Reports a failure and does not end the run.
  void save_for_export();
  void report(const std::optional<WrittenCheckpoint>& written);
  /// Returns the limits for ranks that stand still, as they are now. Any thread may call it.
  StallLimits stall_limits() const;
  bool is_stop_asked() const;
  /// Returns the signal that has asked this rank to stop; 0 for train.time_limit, -1 when another rank was asked.
  int stop_signal() const;
  void say(const std::string& line) const;

  StepContext run_;
  TrainingState state_;
  SkippedSteps skipped_;
  std::atomic<int64_t> step_;   // number of the current step
  std::atomic<int64_t> saved_;  // step of the last complete checkpoint; 0: none
  StepMeter meter_;
  Stragglers stragglers_;
  double flops_per_token_;
  bool padding_mentioned_ = false;
};

}  // namespace meshtrain
