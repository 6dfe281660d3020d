#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/run/run_directory.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

/// What a run goes on from.
struct Resumed {
  TrainingState state;
  std::filesystem::path folder;      ///< of the checkpoint
  std::vector<std::string> changes;  ///< of the recipe, a line each, that are allowed; and that model.hf is gone
  double seconds = 0;                ///< that reading it took
};

/// What every checkpoint of a run of `recipe` says: the recipe, the mesh, what its data are known by. Throws
/// InputError.
CheckpointHead describe_run(const Recipe& recipe, const MeshLayout& layout);

/// The folder of the checkpoint to go on from: that of `step`, or without one the newest, where there is any. Throws
/// InputError when there is none of `step`. Of one rank.
std::optional<std::filesystem::path> checkpoint_to_resume(const CheckpointFolder& checkpoints,
                                                          const std::optional<int64_t>& step);

/// Call where there is no checkpoint to go on from. Throws InputError when metrics.jsonl shows that the run had one, as
/// when a disk is not mounted: with a checkpoint every `every` steps, the first is complete before step 2 `every` + 1.
/// Of one rank.
void check_beginning(const RunDirectory& directory, int64_t every);

/// The recipe of the checkpoint in `folder`, in YAML. Throws InputError as plan_resume() does for a damaged manifest.
std::string read_saved_recipe(const std::filesystem::path& folder);

/// What a run of `own`, of describe_run(), whose last step is `num_steps`, goes on with from the checkpoint in
/// `folder`. Reads the manifest and no pieces. One of step 0 has weights alone: only another model contradicts it.
/// Throws InputError, with what is different, when the checkpoint is of another model, other data, another optimizer or
/// a step behind the last, and when its manifest is damaged: then with the checkpoints beside it. Of one rank.
Resumed plan_resume(const std::filesystem::path& folder, const CheckpointHead& own, int64_t num_steps);

/// Puts the checkpoint in `folder` into `trainer`, on whatever mesh it was written. `folder` and `own` are those of
/// rank 0. Every rank must call it; throws InputError on all of them as plan_resume() does, and when pieces are missing
/// or damaged: the trainer is then of no use. From one of step 0 the optimizer begins anew.
Resumed resume(const std::filesystem::path& folder, const CheckpointHead& own, int64_t num_steps, Trainer& trainer,
               const Group& world);

}  // namespace meshtrain
