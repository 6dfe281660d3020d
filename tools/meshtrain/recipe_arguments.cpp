#include "tools/meshtrain/recipe_arguments.h"

#include <algorithm>
#include <charconv>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {

CLI::Validator whole_number(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [last, error] = std::from_chars(text.data(), end, number);
        if (error == std::errc() && last == end && number >= least) return std::string();
        return text + " is not a whole number from " + std::to_string(least) + " to " + std::to_string(INT64_MAX);
      },
      "");
}

std::map<std::string, int64_t> parse_axes(const std::string& mesh) {
  std::vector<std::string> known = training_axes();
  known.emplace_back(kExpertAxis);
  std::map<std::string, int64_t> sizes = parse_mesh(mesh);
  for (const auto& [axis, size] : sizes) {
    if (std::ranges::count(known, axis) > 0) continue;
    throw InputError("--mesh " + mesh + ": unknown axis " + axis +
                     recipe_keys().foreign_value("parallel.mesh", axis).here() + ": the axes are " + joined(known));
  }
  return sizes;
}

void add_recipe_options(CLI::App& command, RecipeArguments& arguments) {
  command.add_option("--mesh", arguments.mesh,
                     "Shape of the mesh, as in pp=2,dp=2,cp=2,tp=2; an axis left out is 1, one may be auto. Replaces "
                     "parallel.mesh. Default for a recipe of one rank: dp = the number of ranks");
  add_set_option(command, arguments);
}

void add_set_option(CLI::App& command, RecipeArguments& arguments) {
  command.add_option("--set", arguments.overrides, "Sets one key of the recipe: train.steps=20. May be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

Recipe receive_recipe(const std::filesystem::path& file, const RecipeArguments& arguments, const Group& world,
                      const SavedRecipe& saved) {
  Recipe recipe;
  agree(world, [&] {
    if (world.rank() != 0) return;
    recipe = load_recipe(file, arguments.overrides, arguments.mesh, saved);
    take_layouts(recipe);
  });
  if (world.size() == 1) return recipe;
  const std::string yaml = broadcast_text(world, world.rank() == 0 ? to_yaml(recipe) : "");
  return world.rank() == 0 ? recipe : parse_recipe(yaml);
}

std::string spread_over(Recipe& recipe, const RecipeArguments& arguments, int64_t num_ranks) {
  const bool gives_mesh = !arguments.mesh.empty() || std::ranges::any_of(arguments.overrides, sets_mesh);
  const auto is_auto = [](const auto& axis) { return axis.first != kExpertAxis && axis.second == MeshLayout::kAuto; };
  const bool is_one_rank = ranks_of(recipe.parallel.mesh) == 1 && std::ranges::none_of(recipe.parallel.mesh, is_auto);
  if (gives_mesh || !is_one_rank || num_ranks == 1) return "";
  recipe.parallel.mesh[kDataAxis] = num_ranks;
  return "mesh dp=" + std::to_string(num_ranks) + ": the recipe is for one rank, and " + std::to_string(num_ranks) +
         " were started; --mesh chooses another mesh";
}

}  // namespace meshtrain
