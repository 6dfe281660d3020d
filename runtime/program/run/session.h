#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "mesh/base/progress.h"
#include "mesh/device/error_message.h"
#include "runtime/program/run/host_lock.h"
#include "runtime/program/run/journal.h"
#include "runtime/program/run/prediction.h"
#include "runtime/program/run/preparation.h"
#include "runtime/program/run/stop_request.h"
#include "runtime/training/trainer/checkpoints.h"
#include "runtime/training/transformer/read_ahead.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {

/// A run on the ranks of a world, from its recipe to its exported weights. Every rank constructs the same session and
/// makes the same calls in this order: open (the constructor), resume, announce, train, export_weights, close.
class Session {
 public:
  /// Opens mesh, devices, data, model and run directory. With options.resume or resume_step, the model waits for
  /// resume(). Throws InputError, the same on all ranks.
  Session(const Recipe& asked, const Group& world, const RunOptions& options);

  /// Loads the checkpoint that the run resumes from, written on any mesh, into the trainer, and opens metrics and
  /// checkpoints after its step.
  void resume();
  /// Prints the lines before the first step, and prepares the step for a graph if train.cuda_graph requests one.
  void announce();
  RunEnd train(const StopRequest& stop_request, std::chrono::steady_clock::time_point start);
  /// Exports the weights if train.export requests it. Throws AgreedError, not InputError: after the training a failure
  /// is not the user's error.
  void export_weights();
  /// Keeps in goodput.jsonl how the run ended.
  void close(RunEnd end);

 private:
  /// Constructs the trainer and locks the run directory.
  void open_trainer(std::shared_ptr<const PipelineMesh> pipeline_mesh, const ModelReplicas& replicas);
  void record_graph();
  /// Returns a line with the commands that read what this run has left. On rank 0.
  std::string next_commands() const;
  void say(const std::string& line) const;

  std::optional<Progress> start_{std::in_place, "start of the run"};  // until announce() is done
  const Group world_;
  RunOptions options_;
  Preparation prepared_;
  const Recipe& recipe_ = prepared_.recipe;
  const Decisions& decisions_ = prepared_.decisions;
  const DeviceContext& device_context_ = prepared_.device_context;
  const DeviceMesh& mesh_ = *prepared_.mesh;
  const std::filesystem::path& folder_ = prepared_.folder;
  const bool resumes_ = prepared_.resumes;
  std::optional<MemoryAdvice> memory_advice_;
  std::unique_ptr<Prediction> prediction_;  // on rank 0, before the trainer
  std::unique_ptr<TransformerTrainer> trainer_;
  std::unique_ptr<RunDirectory> directory_;  // on rank 0, until the journal takes it
  std::optional<HostLock> host_lock_;
  ResumePoint resumed_;
  std::unique_ptr<Journal> journal_;  // on rank 0
  std::optional<Checkpoints> checkpoints_;
  std::optional<ReadAhead<StepBatch>> batches_;  // batches of the next steps
};

}  // namespace meshtrain
