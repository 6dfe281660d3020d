#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "mesh/base/files/checksum.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/model/first_weights.h"

namespace meshtrain {

// Checkpoints of a model with adapters lack the base's frozen weights, which never change: they are read again from
// model.hf, or drawn again.

/// The entry of CheckpointHead::data that has the fingerprint of the base's folder.
constexpr const char* kBaseKey = "model.hf";

/// Returns the fingerprint of the weights in model.hf, all files together; nullopt when the recipe has no adapters or
/// its weights are drawn. Throws InputError when files cannot be read.
std::optional<Fingerprint> base_fingerprint(const Recipe& recipe);

/// Returns how the base of `own` differs from that of `saved`, for a message; empty when it does not.
std::string describe_other_base(const CheckpointHead& own, const CheckpointHead& saved);

/// Sets model.hf of `recipe`, of a checkpoint, to `base`, the option --base: its folder after it was moved; empty:
/// leaves it. Throws InputError for a recipe without adapters or whose base was drawn.
void move_base(Recipe& recipe, const std::filesystem::path& base);

/// Returns the base of the model that `recipe`, of the checkpoint with `head`, trained. Throws InputError when the
/// folder model.hf is gone, or has other weights than when the checkpoint was written.
FirstWeights open_base(const Recipe& recipe, const CheckpointHead& head);

}  // namespace meshtrain
