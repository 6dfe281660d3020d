#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/data/mixture.h"
#include "runtime/launch/connect_devices.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/run/checkpoints.h"
#include "runtime/run/host_lock.h"
#include "runtime/run/journal.h"
#include "runtime/run/resume.h"
#include "runtime/run/run.h"
#include "runtime/run/stop_request.h"
#include "runtime/trainer/evaluation.h"
#include "runtime/trainer/read_ahead.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

/// A run on the ranks of a world, from its recipe to its exported weights. Every rank constructs the same session and
/// makes the same calls, in the order open (the constructor), resume, announce, train, export_weights.
class Session {
 public:
  /// Opens the run: mesh, devices, data, model and run directory. With options.resume, or resume_step, the model
  /// expects resume(). Throws InputError, the same on all ranks.
  Session(const Recipe& asked, const Group& world, const RunOptions& options);

  /// Puts the checkpoint that the run continues from, of whatever mesh, into the trainer, and opens metrics and
  /// checkpoints behind its step.
  void resume();
  /// Prints the lines before the first step, and readies the step for a graph where train.cuda_graph asks for one.
  void announce();
  RunEnd train(const StopRequest& stop_request, std::chrono::steady_clock::time_point start);
  /// Exports the weights as train.export says, if it does. Throws AgreedError: a failure comes after the training and
  /// is no fault of the input.
  void export_weights();

 private:
  void open_data();
  /// Finds the checkpoint to continue from. Returns whether there is one, on all ranks.
  bool find_checkpoint();
  /// Makes the trainer and locks the run directory.
  void open_trainer(ReplicaMap replicas);
  void record_graph();
  void say(const std::string& line) const;

  const Group& world_;
  RunOptions options_;
  Recipe recipe_;
  RunPlan plan_;
  Computing computing_;
  DeviceMesh mesh_;
  std::filesystem::path folder_;
  CheckpointFolder checkpoint_folder_;
  CheckpointHead head_;  // of rank 0
  std::unique_ptr<Mixture> data_;
  std::unique_ptr<Evaluation> evaluation_;
  std::optional<std::filesystem::path> checkpoint_;  // of rank 0
  bool resumes_ = false;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RunDirectory> directory_;  // of rank 0, until the journal has it
  std::optional<HostLock> host_lock_;
  Resumed resumed_;
  std::unique_ptr<Journal> journal_;  // of rank 0
  std::optional<Checkpoints> checkpoints_;
  std::optional<ReadAhead<StepBatch>> batches_;  // of the steps to come
};

}  // namespace meshtrain
