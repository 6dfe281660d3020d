#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/backends/mpi/launcher.h"
#include "runtime/data/mixture.h"
#include "runtime/hf/export.h"
#include "runtime/launch/connect.h"
#include "runtime/model/unused_weights.h"
#include "runtime/recipe/load.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/run/describe_data.h"
#include "runtime/run/resume.h"
#include "runtime/run/run.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/stop_request.h"
#include "runtime/telemetry/console.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/recipe_arguments.h"
#include "tools/meshtrain/report.h"

namespace meshtrain {
namespace {

struct TrainArguments {
  std::filesystem::path recipe;
  RecipeArguments with;
  RunOptions options;
  bool check = false;
};

/// What the run would go on from.
struct Beginning {
  bool is_checkpoint = false;
  TrainingState state;
  std::vector<std::string> lines;  // what is said of it
};

Beginning find_beginning(const Recipe& recipe, const MeshLayout& layout, const RunOptions& options) {
  if (!options.resume && !options.resume_step) return {};
  const CheckpointFolder checkpoints(RunDirectory::checkpoints_of(RunDirectory::folder_of(recipe, options.run_dir)));
  const auto folder = checkpoint_to_resume(checkpoints, options.resume_step);
  if (!folder)
    return {false, {}, {"--resume: no checkpoint in " + checkpoints.folder().string() + ": begins at step 1"}};
  const Resumed resumed = plan_resume(*folder, describe_run(as_run(recipe, layout), layout), recipe.train.steps);
  std::vector<std::string> lines = {resumed.state.step == 0
                                        ? "begins with the weights of " + folder->string()
                                        : "goes on after step " + std::to_string(resumed.state.step) + ", from " +
                                              folder->string() + ", whose pieces were not read"};
  for (const std::string& change : resumed.changes) lines.push_back("  " + change);
  return {true, resumed.state, std::move(lines)};
}

/// What the checkpoint says that the run goes on from: the model's shape, should model.hf be gone.
SavedRecipe saved_recipe(const RunOptions& options) {
  if (!options.resume && !options.resume_step) return {};
  return [&options](const std::string& name) -> std::string {
    Recipe recipe;
    recipe.name = name;
    const CheckpointFolder checkpoints(RunDirectory::checkpoints_of(RunDirectory::folder_of(recipe, options.run_dir)));
    const auto folder = checkpoint_to_resume(checkpoints, options.resume_step);
    return folder ? read_saved_recipe(*folder) : "";
  };
}

/// What can be known of a run without starting its ranks: a login node suffices. Of several ranks one looks.
int check(const TrainArguments& arguments) {
  if (!is_announced_first()) return 0;
  Recipe recipe =
      load_recipe(arguments.recipe, arguments.with.overrides, arguments.with.mesh, saved_recipe(arguments.options));
  const std::string note = spread_over(recipe, arguments.with, announced_ranks());
  int64_t num_ranks = 1;
  for (const auto& [axis, size] : recipe.parallel.mesh) {
    if (size != MeshLayout::kAuto) num_ranks *= size;
  }
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, num_ranks);
  const RunPlan plan = resolve(recipe, layout);
  if (!recipe.train.export_folder.empty()) check_export_folder(recipe.train.export_folder);
  const Mixture data(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                     static_cast<uint64_t>(recipe.train.seed));
  const std::unique_ptr<Evaluation> evaluation = make_evaluation(recipe);
  const Beginning beginning = find_beginning(recipe, layout, arguments.options);
  std::string unused_weights;
  if (recipe.model.init == "pretrained" && !beginning.is_checkpoint) {
    const SafetensorsFolder weights(recipe.model.hf);
    check_tied_head(weights, recipe.model.shape);
    unused_weights = describe_unused(weights, recipe.model.shape);
  }
  if (!note.empty()) std::printf("%s\n", note.c_str());
  std::printf("%s: fits mesh %s; %s samples of %s tokens\n", recipe.name.c_str(), layout.describe().c_str(),
              with_separators(data.num_samples()).c_str(), with_separators(recipe.train.sequence_length).c_str());
  std::vector<std::string> lines =
      describe_data(recipe, data, samples_of_run(recipe.train, beginning.state), evaluation.get());
  if (!unused_weights.empty()) lines.push_back(unused_weights);
  lines.insert(lines.end(), beginning.lines.begin(), beginning.lines.end());
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  std::printf("\n%s", to_yaml(plan).c_str());
  return 0;
}

int train(TrainArguments& arguments) {
  if (arguments.check) return check(arguments);
  const StopRequest stop_request;  // before MPI starts: what comes by then waits for the first step
  const Group world = connect_world();
  arguments.options.on_failure = [&](const std::exception& error) { report_failure(world, error); };
  return run_on_all_ranks(world, [&] {
    Recipe recipe = receive_recipe(arguments.recipe, arguments.with, world, saved_recipe(arguments.options));
    arguments.options.note = spread_over(recipe, arguments.with, world.size());
    return static_cast<int>(run(recipe, world, arguments.options, stop_request));
  });
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
  add_recipe_options(*command, arguments->with);
  command->add_option(
      "--run-dir", arguments->options.run_dir,
      "Folder of the run: console.log, metrics.jsonl, recipe.yaml, checkpoints. Default: runs/<recipe name>");
  command->add_flag("--resume", arguments->options.resume,
                    "Go on from the newest checkpoint of the run directory, on any mesh; without one, from step 1");
  command
      ->add_option("--resume-step", arguments->options.resume_step,
                   "Go on from the checkpoint of this step; later ones are set aside")
      ->check(whole_number(0))
      ->type_name("N");
  command->add_flag(
      "--check", arguments->check,
      "Check recipe, mesh, model and data, with --resume also whether the run can go on from its checkpoint, "
      "say what would be used, and start nothing");
  command->callback([arguments, &status] { status = train(*arguments); });
}

}  // namespace meshtrain
