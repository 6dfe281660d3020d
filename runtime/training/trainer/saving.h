#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "runtime/training/trainer/checkpoints.h"

namespace meshtrain {

// Every rank must call these functions. Errors are the same on all ranks.

/// Saves parameters, the optimizer's state and `state`, the progress of the training, as FOLDER/step-00000012, and
/// returns when the checkpoint is durable. The trainer sets its own part of `state`. Removes what a killed save left
/// in `folder`, renames checkpoints of later steps to "abandoned-step-...", replaces one of this step when the new one
/// is durable, and then removes those that `kept` does not keep. Makes `folder` and its parents. Throws InputError when
/// `folder` has checkpoints of a run that this trainer has neither resumed nor saved; AgreedError when the disk
/// fails. Only one program at a time may save in a folder. To save while the training continues, use Checkpoints.
void save(Trainer& trainer, TrainingState state, const std::filesystem::path& folder, const KeptCheckpoints& kept = {});

/// Loads the newest checkpoint of `folder`, written on any mesh and in any mode of FSDP, into `trainer`. Returns its
/// state, or nothing when `folder` has no checkpoint; warns when it has abandoned ones alone. save() may write in
/// `folder` afterwards. Throws InputError as load_checkpoint() does, and when the checkpoint has parameters that the
/// model does not have.
std::optional<TrainingState> resume(Trainer& trainer, const std::filesystem::path& folder);

/// Returns the end of a message about a damaged checkpoint: what to do.
using DamageAdvice = std::function<std::string(const std::filesystem::path& checkpoint)>;

/// Loads the checkpoint in `folder` into `trainer` and returns its state. `manifest`: on rank 0 that of the checkpoint.
/// One of step 0 has weights only, and the optimizer's state becomes zero. Throws InputError when a piece is missing or
/// damaged; `trainer` must not be used then.
TrainingState load_checkpoint(const std::filesystem::path& folder, const Manifest& manifest, Trainer& trainer,
                              const Group& world, const DamageAdvice& advice = {});

}  // namespace meshtrain
