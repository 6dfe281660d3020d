#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

struct ImportedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::string> warnings;  ///< weight_warnings() of `hf`
};

/// Writes the weights of the Hugging Face folder `hf` as the checkpoint of step 0 of a run of `recipe` in `run_dir`
/// (empty: runs/<recipe name>), from which `train --resume` begins on any mesh. Copies them bit for bit, in their
/// dtypes, tensor by tensor, and holds one at a time. One process; no collective. Throws
/// InputError, with every difference, when the folder's model is not the recipe's, for a recipe with
/// adapters, for a tied head as check_tied_head()
/// does, and when the run directory holds a run; std::runtime_error when the disk fails. There is then no checkpoint.
ImportedCheckpoint import_checkpoint(const std::filesystem::path& hf, const Recipe& recipe,
                                     const std::filesystem::path& run_dir);

}  // namespace meshtrain
