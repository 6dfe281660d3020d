#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/run/preflight.h"
#include "runtime/program/run/resume.h"
#include "runtime/program/run/run.h"
#include "runtime/training/data/mixture.h"
#include "runtime/training/transformer/evaluation.h"

namespace meshtrain {

/// The part of a run before its trainer exists: all checks and warnings that need no trainer, in one order. A start
/// constructs the trainer next; `train --check` ends here. Changes nothing on disk.
struct Preparation {
  /// Prepares a start of `num_ranks` ranks. `world`: the group of these ranks, which all must call this; connects
  /// their devices. Null: checks only this machine, as rank 0. Throws InputError, the same on all ranks.
  Preparation(const Recipe& asked, const RunOptions& options, int64_t num_ranks, const Group* world = nullptr);
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  /// Returns true when the model begins with the weights in the folder of model.hf.
  bool reads_weights() const { return recipe.model.init == "pretrained" && !resumes; }

  Recipe recipe;  ///< with its mesh
  Decisions decisions;
  DeviceContext device_context;      ///< set at a start
  std::unique_ptr<DeviceMesh> mesh;  ///< null without ranks
  std::filesystem::path folder;      ///< the run directory
  CheckpointFolder checkpoints;
  std::unique_ptr<Mixture> data;
  std::unique_ptr<Evaluation> evaluation;
  bool resumes = false;  ///< true: from a checkpoint; the same on all ranks
  /// The forecast request of this run. Its memory is the least free memory of any rank now; without ranks, the memory
  /// of RunOptions::machine.
  ForecastRequest request;

  // Set on rank 0 only.
  CheckpointHead head;
  std::optional<ResumeCandidate> resume;
  std::vector<Notice> notices;          ///< about weights, disk, devices and the pipeline
  MemoryNotice memory;                  ///< about a step
  std::optional<RunForecast> forecast;  ///< of rank 0 at a start; of the fullest rank without ranks

 private:
  Preparation(const Recipe& asked, const RunOptions& options, const MeshLayout& layout, const Group* world);
  /// Makes all checks. `world`: the ranks, or a group of one when none are started.
  void prepare(const RunOptions& options, const Group& world);
  void open_data(const Group& world);
  void look_at_weights();
  void forecast_step(const RunOptions& options);
};

}  // namespace meshtrain
