#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/group.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// What a command line says of the recipes that a command works on.
struct RecipeArguments {
  std::string mesh;
  std::vector<std::string> overrides;
};

/// A check of options: whole numbers of at least `least`, up to 2^63 - 1.
CLI::Validator whole_number(int64_t least);

/// Parses a mesh as parse_mesh() does. Throws InputError for an axis that is none of training_axes() and not ep, with
/// the axis that a word of another system stands for.
std::map<std::string, int64_t> parse_axes(const std::string& mesh);

/// --mesh and --set.
void add_recipe_options(CLI::App& command, RecipeArguments& arguments);
/// --set alone, where there is no mesh.
void add_set_option(CLI::App& command, RecipeArguments& arguments);

/// The recipe in `file`, read by rank 0 as load_recipe() does, with the layouts of its token files' sidecars
/// (take_layouts()), on every rank of `world`. Throws InputError on all of them.
Recipe receive_recipe(const std::filesystem::path& file, const RecipeArguments& arguments, const Group& world,
                      const SavedRecipe& saved = {});

/// Gives a recipe for one rank, to which the command line gave no mesh, `num_ranks` data-parallel ranks. Returns a line
/// about it for people; empty when the recipe is unchanged.
std::string spread_over(Recipe& recipe, const RecipeArguments& arguments, int64_t num_ranks);

}  // namespace meshtrain
