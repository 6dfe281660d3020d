#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/program/recipe/documented.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// A recipe that reproduces a documented configuration.
struct DocumentedRecipe {
  std::string name;  ///< the file below the folder of recipes, without .yaml: "hf_3d/a_dp2_tp2"
  std::filesystem::path file;
  Recipe recipe;  ///< read without weights, which may have to be fetched
  DocumentedRun documented;

  int64_t num_ranks() const;
  /// Returns the mesh: "dp=2,cp=2", with ep where that is more than 1.
  std::string mesh() const;
  /// Returns the folder's name of a public model, else family, layers and hidden_size: "llama 28x2048".
  std::string model() const;
};

/// Returns all recipes below `folder` that have the section `documented`, by name. Files whose names begin with "base"
/// are what others extend, and are left out. Throws InputError as load_recipe() does, and for a folder without recipes.
std::vector<DocumentedRecipe> documented_recipes(const std::filesystem::path& folder);

/// Returns the recipe in `folder` with this name or file, or whose name alone ends so. Throws InputError that suggests
/// a name.
DocumentedRecipe documented_recipe(const std::filesystem::path& folder, const std::string& name);

/// Returns a line for each file that a run of the recipe needs and that does not exist: what it is, and the command
/// that fetches or makes it.
std::vector<std::string> missing_files(const DocumentedRecipe& recipe);

}  // namespace meshtrain
