#include "tools/meshtrain/recipe_arguments.h"

#include <charconv>
#include <string>

#include "mesh/agree.h"

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

void add_recipe_options(CLI::App& command, RecipeArguments& arguments) {
  command.add_option("--mesh", arguments.mesh,
                     "Shape of the mesh, as dp=2,tp=2,cp=2; an axis left out is 1, one may be auto. "
                     "Replaces parallel.mesh");
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
    if (world.rank() == 0) recipe = load_recipe(file, arguments.overrides, arguments.mesh, saved);
  });
  if (world.size() == 1) return recipe;
  const std::string yaml = broadcast_text(world, world.rank() == 0 ? to_yaml(recipe) : "");
  return world.rank() == 0 ? recipe : parse_recipe(yaml);
}

}  // namespace meshtrain
