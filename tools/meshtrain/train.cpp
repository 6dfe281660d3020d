#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/backends/mpi/launcher.h"
#include "mesh/size_text.h"
#include "runtime/data/mixture.h"
#include "runtime/launch/connect.h"
#include "runtime/model/folder_tensors.h"
#include "runtime/model/unused_weights.h"
#include "runtime/plan/calibrate.h"
#include "runtime/plan/choose_mesh.h"
#include "runtime/plan/plan_text.h"
#include "runtime/recipe/check_data.h"
#include "runtime/recipe/exported_model.h"
#include "runtime/recipe/load.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/run/describe_data.h"
#include "runtime/run/preflight.h"
#include "runtime/run/resume.h"
#include "runtime/run/run.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/stop_request.h"
#include "runtime/telemetry/progress.h"
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
  const Resumed resumed = plan_resume(*folder, describe_run(on_mesh(recipe, layout), layout), recipe.train.steps);
  std::vector<std::string> lines = {resumed.state.step == 0
                                        ? "begins with the weights of " + folder->string()
                                        : "goes on after step " + std::to_string(resumed.state.step) + ", from " +
                                              folder->string() + ", whose pieces were not read"};
  for (const std::string& change : resumed.changes) lines.push_back("  " + change);
  if (!resumed.warning.empty()) lines.push_back(resumed.warning);
  std::vector<int64_t> later = checkpoints.steps();
  std::erase_if(later, [&](int64_t step) { return step <= resumed.state.step; });
  if (!later.empty()) lines.push_back(describe_set_aside(later));
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

/// Gives the recipe the mesh of one rank. Returns a line about it.
std::string take_one_rank(Recipe& recipe) {
  for (auto& [axis, size] : recipe.parallel.mesh) size = 1;
  return "--mesh auto: one rank was started";
}

/// Gives the recipe the mesh that --mesh auto would take for the ranks that mpirun has started. Returns a line about
/// it.
std::string take_planned_mesh(Recipe& recipe, const TrainArguments& arguments, const Machine* machine) {
  const int64_t ranks = announced_ranks();
  if (ranks == 1) return take_one_rank(recipe) + "; mpirun -n N checks the mesh of N";
  if (machine == nullptr) {
    throw InputError("--check --mesh auto measures nothing: give --machine NAME, a preset or the file that mpirun -n " +
                     std::to_string(ranks) + " meshtrain plan " + arguments.recipe.string() + " --calibrate writes");
  }
  const ChosenMesh chosen = choose_mesh(recipe, ranks, *machine);
  recipe = on_mesh(std::move(recipe), chosen.layout);
  return chosen.reason;
}

/// What can be known of a run without starting its ranks: a login node suffices. Of several ranks one looks.
int check(const TrainArguments& arguments) {
  if (!is_announced_first()) return 0;
  const Progress progress("check of " + arguments.recipe.string());
  const bool chooses_mesh = arguments.with.mesh == "auto";
  std::shared_ptr<const Machine> machine;
  if (!arguments.machine.empty()) machine = std::make_shared<const Machine>(load_machine(arguments.machine));
  Recipe recipe = load_recipe(arguments.recipe, arguments.with.overrides, chooses_mesh ? "" : arguments.with.mesh,
                              saved_recipe(arguments.options));
  take_layouts(recipe);
  const std::string note = chooses_mesh ? take_planned_mesh(recipe, arguments, machine.get())
                                        : spread_over(recipe, arguments.with, announced_ranks());
  int64_t num_ranks = 1;
  for (const auto& [axis, size] : recipe.parallel.mesh) {
    if (size != MeshLayout::kAuto) num_ranks *= size;
  }
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, num_ranks);
  const RunPlan plan = resolve(recipe, layout);
  check_sidecars(recipe, tokenizer_of(recipe));
  check_tokenizer(recipe);
  const std::filesystem::path run_directory = RunDirectory::folder_of(recipe, arguments.options.run_dir);
  check_export(recipe, run_directory);
  const Mixture data(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size,
                     static_cast<uint64_t>(recipe.train.seed));
  check_labels(recipe, data);
  const std::unique_ptr<Evaluation> evaluation = make_evaluation(recipe.evaluate, plan, recipe.train.steps);
  const Beginning beginning = find_beginning(recipe, layout, arguments.options);
  std::vector<std::string> warnings;
  if (recipe.model.init == "pretrained" && !beginning.is_checkpoint) {
    const SafetensorsFolder weights = open_weights(recipe.model.hf, recipe.model.shape);
    check_weights(weights, recipe.model.shape);
    check_tied_head(weights, recipe.model.shape);
    warnings = weight_warnings(weights, recipe.model.shape);
  }
  const Outlook ahead = look_ahead(recipe, plan, run_directory, machine);
  check_run_directory(run_directory, arguments.options.resumes());  // last: faults of a changed recipe are said first
  if (!note.empty()) std::printf("%s\n", note.c_str());
  std::printf("%s: fits mesh %s; %s of %s\n", recipe.name.c_str(), layout.describe().c_str(),
              counted(data.num_samples(), "sample").c_str(), counted(recipe.train.sequence_length, "token").c_str());
  std::vector<std::string> lines;
  for (Notice& notice : describe_data(recipe, data, samples_of_run(recipe.train, beginning.state), evaluation.get())) {
    lines.push_back(std::move(notice.line));
  }
  lines.insert(lines.end(), warnings.begin(), warnings.end());
  lines.insert(lines.end(), beginning.lines.begin(), beginning.lines.end());
  lines.insert(lines.end(), ahead.lines.begin(), ahead.lines.end());
  lines.push_back(not_checked(recipe, plan));
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  if (arguments.plan && ahead.forecast) {
    std::printf("plan: %s%s\n", describe_forecast(*ahead.forecast).c_str(), ahead.basis.c_str());
  }
  std::printf("\n%s", to_yaml(plan).c_str());
  return 0;
}

/// Returns true when the ranks of a run on this host compute on GPUs.
bool computes_on_gpus(const Recipe& recipe) {
  const bool has_gpus = std::filesystem::exists("/proc/driver/nvidia/version");
  return recipe.device == "cuda" || (recipe.device == "auto" && has_gpus);
}

/// Throws InputError when the times of --machine are of another device than the run's.
void check_machine(const Recipe& recipe, const Machine& machine) {
  if ((machine.device == "cuda") == computes_on_gpus(recipe)) return;
  const auto named = [](bool gpus) { return std::string(gpus ? "GPUs" : "CPUs"); };
  throw InputError("--machine " + machine.name + " has times of " + named(machine.device == "cuda") +
                   ", and device: " + recipe.device + " takes " + named(computes_on_gpus(recipe)) +
                   " here: name a machine of these, or leave --machine out");
}

/// Returns the machine that --mesh auto plans for. Every rank must call it.
Machine machine_of(const TrainArguments& arguments, const Recipe& recipe, const Group& world) {
  if (arguments.options.machine) return *arguments.options.machine;
  if (computes_on_gpus(recipe)) {
    throw InputError("--mesh auto on GPUs needs --machine: a preset or a file (docs/plan.md)");
  }
  return calibrate(recipe, world, [](const std::string&) {});
}

/// Gives the recipe the fastest mesh for --mesh auto. Returns a line about it. Every rank must call it.
std::string take_best_mesh(Recipe& recipe, TrainArguments& arguments, const Group& world) {
  const auto start = std::chrono::steady_clock::now();
  if (world.size() == 1) return take_one_rank(recipe);
  const Progress progress("--mesh auto");
  arguments.options.machine = std::make_shared<const Machine>(machine_of(arguments, recipe, world));
  const ChosenMesh chosen = choose_mesh(recipe, world, *arguments.options.machine);
  recipe = on_mesh(std::move(recipe), chosen.layout);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return chosen.reason + "; chosen in " + seconds_text(seconds.count());
}

int train(TrainArguments& arguments) {
  if (arguments.check) return check(arguments);
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout, as behind | head, ends no run: console.log has the lines
  if (!arguments.machine.empty()) {
    arguments.options.machine = std::make_shared<const Machine>(load_machine(arguments.machine));
  }
  const bool chooses_mesh = arguments.with.mesh == "auto";
  if (chooses_mesh) arguments.with.mesh.clear();
  const StopRequest stop_request;  // before MPI starts: what comes by then waits for the first step
  const Group world = connect_world();
  arguments.options.on_failure = [&](const std::exception& error) { report_failure(world, error); };
  return run_on_all_ranks(world, [&] {
    Recipe recipe = receive_recipe(arguments.recipe, arguments.with, world, saved_recipe(arguments.options));
    if (arguments.options.machine) check_machine(recipe, *arguments.options.machine);
    arguments.options.note =
        chooses_mesh ? take_best_mesh(recipe, arguments, world) : spread_over(recipe, arguments.with, world.size());
    return static_cast<int>(run(recipe, world, arguments.options, stop_request));
  });
}

}  // namespace

void add_train_command(CLI::App& app, int& status) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand(
      "train",
      "Trains the model of a recipe. The mesh is as many ranks as mpirun starts; alone it is one. To stop after a step "
      "with a checkpoint, press Ctrl-C alone or under tools/ranks. Use kill -USR1 of mpirun, whose Ctrl-C ends the "
      "ranks without a checkpoint. Then --resume.\n\n"
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
                   "What the plan's times are for: a preset or a file of plan --calibrate. Without it --mesh auto "
                   "measures CPUs first")
      ->type_name("NAME");
  command->callback([arguments, &status] { status = train(*arguments); });
}

}  // namespace meshtrain
