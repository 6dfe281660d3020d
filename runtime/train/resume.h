#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/train/trainer.h"

namespace meshtrain {

/// What a run goes on from.
struct Resumed {
  TrainingState state;
  std::filesystem::path folder;      ///< of the checkpoint
  std::vector<std::string> changes;  ///< of the recipe, a line each, that are allowed
  double seconds = 0;                ///< that reading it took
};

/// What every checkpoint of a run of `recipe` says: the recipe, the mesh, what its data are known by. Throws
/// InputError.
CheckpointHead describe_run(const Recipe& recipe, const MeshLayout& layout);

/// Puts the checkpoint in `folder` into `trainer`, on whatever mesh it was written. `own`: of describe_run(). `folder`
/// and `own` are those of rank 0. Every rank must call it; throws InputError on all of them, with what is different,
/// when the checkpoint is of another model, other data or another optimizer, or is damaged: the trainer is then of no
/// use.
Resumed resume(const std::filesystem::path& folder, const CheckpointHead& own, Trainer& trainer, const Group& world);

}  // namespace meshtrain
