#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/trainer/trainer.h"

namespace meshtrain {

/// The checkpoint that a run resumes from.
struct ResumePoint {
  TrainingState state;
  std::filesystem::path folder;      ///< folder of the checkpoint
  std::vector<std::string> changes;  ///< allowed changes of the recipe, one line each, and a line when model.hf is gone
  std::string warning = {};          ///< about a change that moves the learning rate; empty without one
  double seconds = 0;                ///< time spent reading its pieces
  std::vector<int64_t> set_aside = {};  ///< steps of later checkpoints, which no longer belong to the run
};

/// Returns the head of every checkpoint of a run of `recipe`: recipe, mesh and fingerprints of the data. Throws
/// InputError.
CheckpointHead describe_run(const Recipe& recipe, const MeshLayout& layout);

/// Returns the folder of the checkpoint to resume from: that of `step`, or the newest one, if any, without `step`.
/// Throws InputError when `step` has none. Call on one rank.
std::optional<std::filesystem::path> checkpoint_to_resume(const CheckpointFolder& checkpoints,
                                                          const std::optional<int64_t>& step);

/// Checks that the run directory `run`, which has no checkpoint to resume from, never had one. Throws InputError when
/// its metrics.jsonl shows one, for example because a disk is not mounted. With a checkpoint every `every` steps, the
/// first is complete before step 2 `every` + 1. Call on one rank.
void check_beginning(const std::filesystem::path& run, int64_t every);

/// Returns the recipe of the checkpoint in `folder` as YAML. Throws InputError for a damaged manifest, as
/// resume_candidate() does.
std::string read_saved_recipe(const std::filesystem::path& folder);

/// A checkpoint to resume from, before its pieces are read.
struct ResumeCandidate {
  ResumePoint point;
  Manifest manifest;
};

/// Returns the candidate for a resume from the checkpoint in `folder`. `own`: describe_run() of the run; `num_steps`:
/// its last step. Reads the manifest and no pieces. A checkpoint of step 0 has weights only, so only a different model
/// contradicts it. Throws InputError with the differences when the checkpoint has another model, other data, another
/// optimizer or a step after the last. Throws InputError with the other checkpoints of the folder when the manifest is
/// damaged. Call on one rank.
ResumeCandidate resume_candidate(const std::filesystem::path& folder, const CheckpointHead& own, int64_t num_steps);

/// Returns a line about checkpoints of `steps`, which are later than the one that a run resumes from: "checkpoints of
/// steps 30, 40, which are later, are set aside as abandoned-step-..."; empty without any.
std::string describe_set_aside(const std::vector<int64_t>& steps);

/// Loads the checkpoint of `candidate`, written on any mesh, into `trainer`. Rank 0's `candidate` counts. Every rank
/// must call it. Throws InputError on all ranks when pieces are missing or damaged; `trainer` must not be used then.
/// The optimizer starts with zero state from a checkpoint of step 0.
ResumePoint resume(ResumeCandidate candidate, Trainer& trainer, const Group& world);

}  // namespace meshtrain
