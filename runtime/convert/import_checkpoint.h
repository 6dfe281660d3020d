#pragma once

#include <filesystem>

#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Writes the weights of the Hugging Face folder `hf` as the checkpoint of step 0 of a run of `recipe` in `run_dir`
/// (empty: runs/<recipe name>), from which `train --resume` begins on any mesh. Bit for bit, in the dtypes that they
/// have; goes through them tensor by tensor and holds one. Returns the checkpoint's folder. One process; no collective.
/// Throws InputError, with every difference, when the folder's model is not the recipe's, and when the run directory
/// holds a run; std::runtime_error when the disk fails. Then there is no checkpoint.
std::filesystem::path import_checkpoint(const std::filesystem::path& hf, const Recipe& recipe,
                                        const std::filesystem::path& run_dir);

}  // namespace meshtrain
