#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "runtime/config/load.h"
#include "runtime/config/validate.h"
#include "runtime/data/dataset.h"
#include "runtime/telemetry/console.h"
#include "runtime/train/connect.h"
#include "runtime/train/run.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

struct TrainArguments {
  std::filesystem::path recipe;
  std::string mesh;
  std::vector<std::string> overrides;
  RunOptions options;
  bool check = false;
};

/// The recipe that rank 0 reads, on every rank.
Recipe receive_recipe(const TrainArguments& arguments, const Group& world) {
  Recipe recipe;
  agree(world, [&] {
    if (world.rank() == 0) recipe = load_recipe(arguments.recipe, arguments.overrides, arguments.mesh);
  });
  if (world.size() == 1) return recipe;
  const std::string yaml = broadcast_text(world, world.rank() == 0 ? to_yaml(recipe) : "");
  return world.rank() == 0 ? recipe : parse_recipe(yaml);
}

/// What can be known of a run without starting its ranks: a login node suffices.
int check(const TrainArguments& arguments) {
  const Recipe recipe = load_recipe(arguments.recipe, arguments.overrides, arguments.mesh);
  int64_t num_ranks = 1;
  for (const auto& [axis, size] : recipe.parallel.mesh) {
    if (size != MeshLayout::kAuto) num_ranks *= size;
  }
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, num_ranks);
  validate(recipe, layout);
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                        static_cast<uint64_t>(recipe.train.seed));
  std::printf("%s: fits mesh %s; %s samples of %s tokens\n", recipe.name.c_str(), layout.describe().c_str(),
              with_separators(dataset.num_samples()).c_str(), with_separators(recipe.train.sequence_length).c_str());
  return 0;
}

int train(const TrainArguments& arguments) {
  if (arguments.check) return check(arguments);
  const Group world = connect_world();
  return run_on_all_ranks(
      world, [&] { return static_cast<int>(run(receive_recipe(arguments, world), world, arguments.options)); });
}

}  // namespace

void add_train_command(CLI::App& app, int& status) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Trains the model of a recipe. The mesh is as many ranks as mpirun starts; alone it is one.\n\n"
      "  meshtrain train recipes/quickstart.yaml --set train.steps=20\n"
      "  mpirun -n 8 meshtrain train recipes/quickstart.yaml --mesh dp=2,tp=2,cp=2 --run-dir runs/mine");
  command->add_option("recipe", arguments->recipe, "The recipe, a YAML file")->required();
  command->add_option("--mesh", arguments->mesh,
                      "Shape of the mesh, as dp=2,tp=2,cp=2; an axis left out is 1, one may be auto. "
                      "Replaces parallel.mesh");
  command->add_option("--set", arguments->overrides, "Sets one key of the recipe: train.steps=20. May be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--run-dir", arguments->options.run_dir,
                      "Folder of the run: metrics.jsonl, recipe.yaml. Default: runs/<recipe name>");
  command->add_flag("--resume", arguments->options.resume,
                    "Continue in a run directory that holds a run; without a checkpoint there, from step 1");
  command->add_flag("--check", arguments->check, "Check recipe, mesh, model and data, and start nothing");
  command->callback([arguments, &status] { status = train(*arguments); });
}

}  // namespace meshtrain
