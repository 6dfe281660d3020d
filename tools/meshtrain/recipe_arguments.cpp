#include "tools/meshtrain/recipe_arguments.h"

#include "mesh/agree.h"
#include "runtime/config/load.h"

namespace meshtrain {

CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) {
        constexpr size_t kMostDigits = 18;
        const bool number =
            !text.empty() && text.size() <= kMostDigits && text.find_first_not_of("0123456789") == std::string::npos;
        const bool fits = number && text.find_first_not_of('0') != std::string::npos;
        return fits ? std::string() : text + " is not a whole number of at least 1";
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

Recipe receive_recipe(const std::filesystem::path& file, const RecipeArguments& arguments, const Group& world) {
  Recipe recipe;
  agree(world, [&] {
    if (world.rank() == 0) recipe = load_recipe(file, arguments.overrides, arguments.mesh);
  });
  if (world.size() == 1) return recipe;
  const std::string yaml = broadcast_text(world, world.rank() == 0 ? to_yaml(recipe) : "");
  return world.rank() == 0 ? recipe : parse_recipe(yaml);
}

}  // namespace meshtrain
