#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// How a recipe differs from that of a checkpoint which is to be gone on from; a line a key, "train.seed: 7, was 42".
/// Files that a mixture has more or fewer of are a line each, a mixture in the place of one file is a line.
/// What is allowed and has the value that it has by itself is left out where the other recipe cannot have the key.
struct RecipeChanges {
  std::vector<std::string> contradictions;  ///< it would be another model, other data or another optimizer
  std::vector<std::string> allowed;         ///< the same training goes on, otherwise: mesh, learning rate, ...
};

/// Compares the YAML of to_yaml(). Where files lie is no contradiction; whether they are the same files is not asked
/// here. `trained`: steps were made; before the first one only another model contradicts. Throws InputError when
/// `saved` is no YAML.
RecipeChanges compare_recipes(const std::string& saved, const std::string& asked, bool trained = true);

}  // namespace meshtrain
