#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/backends/mpi/launcher.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/device/cuda/plugin.h"
#include "runtime/program/forecast/calibrate.h"
#include "runtime/program/forecast/choose_mesh.h"
#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/describe_data.h"
#include "runtime/program/run/preparation.h"
#include "runtime/program/run/run.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/run/stop_request.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/recipe_arguments.h"
#include "tools/meshtrain/report.h"

namespace meshtrain {
namespace {

struct TrainArguments {
  std::filesystem::path recipe;
  RecipeArguments with;
  RunOptions options;
  std::string machine;  // for --mesh auto and predictions; empty: CPUs are measured
  bool check = false;
  bool plan = false;
};

/// Returns lines about the checkpoint that a start would resume from.
std::vector<Notice> describe_beginning(const Preparation& prepared, const RunOptions& options) {
  if (!options.resumes()) return {};
  const CheckpointFolder& checkpoints = prepared.checkpoints;
  if (!prepared.resume) return {{"--resume: no checkpoint in " + checkpoints.folder().string() + ": begins at step 1"}};
  const ResumePoint& resumed = prepared.resume->point;
  const std::string folder = resumed.folder.string();
  std::vector<Notice> lines = {{resumed.state.step == 0 ? "begins with the weights of " + folder
                                                        : "continues after step " + std::to_string(resumed.state.step) +
                                                              ", from " + folder + ", whose pieces were not read"}};
  for (const std::string& change : resumed.changes) lines.push_back({"  " + change});
  lines.push_back({resumed.warning, true});
  std::vector<int64_t> later = checkpoints.steps();
  std::erase_if(later, [&](int64_t step) { return step <= resumed.state.step; });
  lines.push_back({describe_set_aside(later)});
  return lines;
}

/// Returns the recipe saved in the checkpoint to resume from; it has the model's shape when model.hf no longer exists.
SavedRecipe saved_recipe(const RunOptions& options) {
  if (!options.resumes()) return {};
  return [&options](const std::string& name) -> std::string {
    Recipe recipe;
    recipe.name = name;
    const CheckpointFolder checkpoints(RunDirectory::checkpoints_of(RunDirectory::folder_of(recipe, options.run_dir)));
    const auto folder = checkpoint_to_resume(checkpoints, options.resume_step);
    return folder ? read_saved_recipe(*folder) : "";
  };
}

/// Returns true when the ranks of a run on this host compute on GPUs.
bool computes_on_gpus(const Recipe& recipe) {
  return recipe.device == "cuda" || (recipe.device == "auto" && is_cuda_driver_there());
}

/// Throws InputError when the times of --machine are of another device than the run's. A check does not know which
/// device `auto` selects where the run starts.
void check_machine(const TrainArguments& arguments, const Recipe& recipe) {
  if (!arguments.options.machine || (arguments.check && recipe.device == "auto")) return;
  const Machine& machine = *arguments.options.machine;
  if ((machine.device == "cuda") == computes_on_gpus(recipe)) return;
  const auto named = [](bool gpus) { return std::string(gpus ? "GPUs" : "CPUs"); };
  throw InputError("--machine " + machine.name + " has times for " + named(machine.device == "cuda") +
                   ", but device: " + recipe.device + " uses " + named(computes_on_gpus(recipe)) +
                   " here: give a machine with these, or leave --machine out");
}

/// Returns the machine for the forecasts of --mesh auto. Every rank must call it.
Machine machine_of(const TrainArguments& arguments, const Recipe& recipe, const Group& world, int64_t num_ranks) {
  if (arguments.options.machine) return *arguments.options.machine;
  if (computes_on_gpus(recipe)) {
    throw InputError("--mesh auto on GPUs needs --machine: a preset or a file (docs/plan.md)");
  }
  if (!arguments.check) return calibrate(recipe, world, [](const Notice&) {});
  throw InputError("--check --mesh auto measures nothing: give --machine NAME, a preset or the file that mpirun -n " +
                   std::to_string(num_ranks) + " meshtrain plan " + arguments.recipe.string() + " --calibrate writes");
}

/// Gives the recipe the fastest mesh of `num_ranks` ranks for --mesh auto. Returns a line about that mesh. Every rank
/// must call it.
std::string take_best_mesh(Recipe& recipe, TrainArguments& arguments, const Group& world, int64_t num_ranks) {
  const auto start = std::chrono::steady_clock::now();
  if (num_ranks == 1) {
    for (auto& [axis, size] : recipe.parallel.mesh) size = 1;
    return std::string("--mesh auto: one rank was started") +
           (arguments.check ? "; mpirun -n N checks the mesh of N" : "");
  }
  const Progress progress("--mesh auto");
  arguments.options.machine = std::make_shared<const Machine>(machine_of(arguments, recipe, world, num_ranks));
  const Machine& machine = *arguments.options.machine;
  const ChosenMesh chosen =
      arguments.check ? choose_mesh(recipe, num_ranks, machine) : choose_mesh(recipe, world, machine);
  recipe = on_mesh(std::move(recipe), chosen.layout);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return chosen.reason + (arguments.check ? "" : "; chosen in " + seconds_text(seconds.count()));
}

/// Returns the recipe on the mesh of `num_ranks` ranks that `arguments` request. Stores a line about that mesh in the
/// note of their options. Every rank of `world` must call it.
Recipe take_recipe(TrainArguments& arguments, const Group& world, int64_t num_ranks) {
  const bool chooses_mesh = arguments.with.mesh == "auto";
  if (chooses_mesh) arguments.with.mesh.clear();
  Recipe recipe = receive_recipe(arguments.recipe, arguments.with, world, saved_recipe(arguments.options));
  check_machine(arguments, recipe);
  arguments.options.note = chooses_mesh ? take_best_mesh(recipe, arguments, world, num_ranks)
                                        : spread_over(recipe, arguments.with, num_ranks);
  return recipe;
}

/// Returns the number of ranks that a check of `recipe` assumes: the started ones if there are several, else those of
/// its mesh.
int64_t num_checked(const Recipe& recipe) {
  return announced_ranks() > 1 ? announced_ranks() : ranks_of(recipe.parallel.mesh);
}

/// Prepares a run without starting its ranks, which also works on a login node.
int check(TrainArguments& arguments) {
  const Progress progress("check of " + arguments.recipe.string());
  const Recipe recipe = take_recipe(arguments, Group(), announced_ranks());
  const RunOptions& options = arguments.options;
  const Preparation prepared(recipe, options, num_checked(recipe));
  const auto print = [](const std::string& line) {
    if (!line.empty()) std::printf("%s\n", line.c_str());
  };
  const auto tell = [&](const Notice& notice) {
    if (notice.line.empty()) return;
    notice.is_warning ? log_warning(notice.line) : print(notice.line);
  };
  print(options.note);
  print(recipe.name + ": fits mesh " + prepared.decisions.layout.describe() + "; " +
        counted(prepared.data->num_samples(), "sample") + " of " + counted(recipe.train.sequence_length, "token"));
  const TrainingState state = prepared.resume ? prepared.resume->point.state : TrainingState();
  for (const Notice& notice :
       describe_data(prepared.recipe, *prepared.data, samples_of_run(recipe.train, state), prepared.evaluation.get())) {
    tell(notice);
  }
  for (const Notice& notice : describe_beginning(prepared, options)) tell(notice);
  for (const Notice& notice : prepared.notices) tell(notice);
  tell({prepared.memory.text, prepared.memory.is_warning});
  print(not_checked(prepared.recipe, prepared.decisions));
  if (arguments.plan && prepared.forecast) {
    print("plan: " + describe_forecast(*prepared.forecast) + basis_text(prepared.request));
    const std::vector<int64_t> stages = stage_memory(prepared.decisions, prepared.request.hosts);
    if (!stages.empty()) print("plan: " + describe_stages(prepared.decisions.pipeline, stages));
    const std::string worst = describe_worst_routing(prepared.decisions, prepared.request.hosts);
    if (!worst.empty()) print("plan: " + worst);
  }
  std::printf("\n%s", to_yaml(prepared.decisions).c_str());
  return 0;
}

int train(TrainArguments& arguments) {
  if (arguments.check && !is_announced_first()) return 0;  // only one of several ranks checks
  if (!arguments.machine.empty()) {
    arguments.options.machine = std::make_shared<const Machine>(load_machine(arguments.machine));
  }
  if (arguments.check) return check(arguments);
  std::signal(SIGPIPE, SIG_IGN);   // a closed stdout, as behind | head, ends no run: console.log has the lines
  const StopRequest stop_request;  // before MPI starts: what comes by then waits for the first step
  const Group world = connect_world();
  arguments.options.on_failure = [&](const std::exception& error) { report_failure(world, error); };
  return run_on_all_ranks(world, [&] {
    const Recipe recipe = take_recipe(arguments, world, world.size());
    return static_cast<int>(run(recipe, world, arguments.options, stop_request));
  });
}

}  // namespace

void add_train_command(CLI::App& app, int& status) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Trains the model of a recipe. Runs on as many ranks as mpirun starts, or alone on one. To stop after a step "
      "with a checkpoint, press Ctrl-C for one rank or tools/ranks; for mpirun, whose Ctrl-C ends the ranks without a "
      "checkpoint, use kill -USR1 on its process. Continue with --resume.\n\n"
      "  meshtrain train recipes/quickstart.yaml --set train.steps=20\n"
      "  mpirun -n 8 meshtrain train recipes/quickstart.yaml --mesh dp=2,tp=2,cp=2 --run-dir runs/mine");
  command->add_option("recipe", arguments->recipe, "The recipe, a YAML file")->required();
  add_recipe_options(*command, arguments->with);
  command->add_option(
      "--run-dir", arguments->options.run_dir,
      "Folder of the run: console.log, metrics.jsonl, recipe.yaml, checkpoints. Default: runs/<recipe name>");
  command->add_flag("--resume", arguments->options.resume,
                    "Continue from the newest checkpoint of the run directory, on any mesh; without one, from step 1");
  command
      ->add_option("--resume-step", arguments->options.resume_step,
                   "Continue from the checkpoint of this step; later ones are set aside")
      ->check(whole_number(0))
      ->type_name("N");
  command->add_flag(
      "--check", arguments->check,
      "Check without starting a run: recipe, mesh, model, data, the paths that will be written, free disk, memory and "
      "devices, with --resume also whether the run can continue from its checkpoint. Print what would be used, and "
      "what "
      "only ranks can check");
  command->add_flag("--plan", arguments->plan,
                    "With --check: also say in one line what the mesh needs, as meshtrain plan does");
  command
      ->add_option("--machine", arguments->machine,
                   "The machine for the plan's times: a preset or a file of plan --calibrate. Without it --mesh auto "
                   "first measures CPUs")
      ->type_name("NAME");
  command->callback([arguments, &status] { status = train(*arguments); });
}

}  // namespace meshtrain
