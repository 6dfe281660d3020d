#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// The differences of a recipe from that of the checkpoint to resume from; a line a key, "train.seed: 7, was 42". Each
/// file that a mixture has more or fewer is one line, and so is a mixture instead of one file. An allowed key with its
/// default value is left out when the other recipe cannot have the key.
struct RecipeChanges {
  std::vector<std::string> contradictions;  ///< it would be another model, other data or another optimizer
  std::vector<std::string> allowed;  ///< the same training continues with other settings: mesh, learning rate, ...
};

/// Compares the YAML of to_yaml(). Another path to a file is no contradiction; whether the files are the same is not
/// checked here. `trained`: steps were made; before the first one only another model contradicts. Throws InputError
/// when `saved` is not YAML.
RecipeChanges compare_recipes(const std::string& saved, const std::string& asked, bool trained = true);

}  // namespace meshtrain
