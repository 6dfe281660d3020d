#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/calibrate.h"
#include "runtime/program/forecast/calibrate_host.h"
#include "runtime/program/forecast/forecast_text.h"
#include "runtime/program/forecast/search.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/launch/connect_devices.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/transformer/batch_growth.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/launcher.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

struct PlanArguments {
  std::filesystem::path recipe;
  RecipeArguments with;
  int64_t ranks = 0;
  int64_t ranks_per_host = 0;
  std::string memory;
  std::string machine;
  bool calibrate = false;
  std::filesystem::path out = "machine.yaml";
  std::string search = "mesh";
  size_t top = 10;
  std::filesystem::path json;
};

/// Returns the bytes of "80GiB", "512 MiB" or "80GB".
int64_t parse_size(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  while (std::isspace(static_cast<unsigned char>(*end)) != 0) ++end;
  const std::string unit = end;
  const double factor = unit == "GiB" ? 0x1p30 : unit == "MiB" ? 0x1p20 : unit == "GB" ? 1e9 : unit == "MB" ? 1e6 : 0;
  if (factor == 0 || !std::isfinite(number) || number <= 0 || number * factor > 1e18) {
    throw InputError("--memory " + text + ": expected a size above 0 with its unit, as in 80GiB, 512MiB or 80GB");
  }
  return static_cast<int64_t>(number * factor);
}

/// Returns how to find out which mesh is the fastest.
std::string how_to_compare(const PlanArguments& arguments, const Recipe& recipe) {
  std::string presets;
  for (const std::string& each : machine_presets()) presets += (presets.empty() ? "" : " ") + each;
  std::string text = "  which mesh is the fastest:\n";
  if (recipe.device != "cpu") text += "    on GPUs: give --machine NAME, one of " + presets + "\n";
  if (recipe.device == "cuda") return text;
  return text + "    on CPUs: give --machine FILE, which mpirun -n " + std::to_string(arguments.ranks) +
         " meshtrain plan " + arguments.recipe.string() + " --calibrate --out FILE writes\n";
}

void plan(const PlanArguments& arguments) {
  constexpr int64_t kMostRanks = 16384;
  refuse_several_ranks("meshtrain plan");
  if (arguments.ranks > kMostRanks) {
    throw InputError("--ranks " + std::to_string(arguments.ranks) + ": a plan covers at most " +
                     std::to_string(kMostRanks) + " ranks");
  }
  const Progress progress("plan of " + arguments.recipe.string());
  Recipe recipe = load_recipe(arguments.recipe, arguments.with.overrides, "");
  take_layouts(recipe);
  std::shared_ptr<const Machine> machine;
  if (!arguments.machine.empty()) machine = std::make_shared<const Machine>(load_machine(arguments.machine));
  ForecastRequest request = forecast_request(recipe, arguments.ranks, arguments.ranks_per_host, std::move(machine));
  if (!arguments.memory.empty()) request.memory = parse_size(arguments.memory);
  if (arguments.search == "all") {
    if (!request.machine)
      throw InputError(
          "--search all: settings are compared by their times: give --machine, a preset or a file of "
          "--calibrate");
    request.scope = SearchScope::All;
  }
  if (request.machine) {
    try {
      request.samples = std::make_shared<const PackedSamples>(recipe);
    } catch (const InputError& error) {
      log_warning("samples are timed as one document each: " + std::string(error.what()));
    }
  }
  if (request.memory && *request.memory <= request.runtime_bytes()) {
    throw InputError("--memory " + size_text(*request.memory) + ": the runtime of a GPU alone takes " +
                     size_text(request.runtime_bytes()) + " of it: give the total memory of a GPU");
  }
  MeshSearch search = search_meshes(recipe, request);
  if (!search.meshes.empty()) {
    MeshForecast& best = search.meshes.front();
    best.worst_routing = forecast_worst_routing(resolve(best.recipe, best.layout), request.hosts);
  }
  if (!arguments.json.empty()) write_atomically(arguments.json, to_json(search, request) + "\n");
  if (search.meshes.empty() || !search.meshes.front().fits) throw InputError(explain(search, recipe, request));
  std::fputs(to_text(search, request, arguments.top).c_str(), stdout);
  if (const std::string growth = describe_growth(recipe.train); !growth.empty()) {
    std::printf("  %s; the plan is for the last size\n", growth.c_str());
  }
  if (const std::string others = left_out(recipe, arguments.ranks); !others.empty())
    std::printf("  %s\n", others.c_str());
  const MeshForecast& first = search.meshes.front();
  const std::string reasons = advice(search);
  if (!reasons.empty()) std::printf("\n%s", reasons.c_str());
  const std::vector<int64_t> stages = stage_memory(resolve(first.recipe, first.layout), request.hosts);
  if (!stages.empty()) std::printf("%s", stages_text(first, stages).c_str());
  std::printf("%s", worst_routing_text(first).c_str());
  if (request.memory) {
    const LargestFit micro_batch = largest_micro_batch(first, request);
    std::printf("  at most with %s: train.micro_batch %ld (%s; %s)", first.layout.describe().c_str(),
                static_cast<long>(micro_batch.value), size_text(micro_batch.memory).c_str(),
                micro_batch.bound == LargestFit::Bound::Memory ? "memory allows no more"
                                                               : "train.global_batch / dp allows no more");
    if (request.hosts.gpus) {  // for hosts, operators of that size would be tried
      const LargestFit sequence = largest_sequence(first, request);
      std::printf("\n    or train.sequence_length %ld (%s; %s)", static_cast<long>(sequence.value),
                  size_text(sequence.memory).c_str(),
                  sequence.bound == LargestFit::Bound::Memory ? "memory allows no more" : "no more were tried");
    }
    std::printf("\n");
  }
  if (!request.machine) {
    std::printf("\n%s", how_to_compare(arguments, recipe).c_str());
    return;
  }
  std::string settings;
  for (const std::string& setting : arguments.with.overrides) {
    if (!sets_mesh(setting)) settings += " --set '" + setting + "'";  // --mesh gives another
  }
  for (const std::string& setting : first.settings) settings += " --set '" + setting + "'";
  std::printf("\n  mpirun -n %ld meshtrain train %s --mesh %s%s\n", static_cast<long>(request.ranks),
              arguments.recipe.c_str(), first.layout.describe().c_str(), settings.c_str());
}

/// Returns the machine `name` with the rates of the ranks' host measured here. Every rank must call it.
Machine with_host(const std::string& name, const Group& world) {
  Machine machine;
  agree(world, [&] { machine = load_machine(name); });
  const DeviceContext context =
      connect_devices({.kind = DeviceRequest::Kind::Cuda, .transport = DeviceRequest::Transport::Mpi}, world);
  machine.host = measure_host(world, context.device);
  machine.source += "; copies and updates of the host: meshtrain plan --calibrate";
  return machine;
}

int calibrate_on_ranks(const PlanArguments& arguments) {
  const Group world = connect_world();
  return run_on_all_ranks(world, [&] {
    const bool speaks = world.rank() == 0;
    const auto say = [&](const Notice& notice) {
      if (!speaks) return;
      notice.is_warning ? log_warning(notice.line) : static_cast<void>(std::printf("%s\n", notice.line.c_str()));
    };
    const Progress progress("calibration for " + arguments.recipe.string());
    agree(world, [&] {
      std::error_code ignored;
      if (speaks && std::filesystem::exists(arguments.out, ignored)) {
        throw InputError("--out " + arguments.out.string() + " already exists: give another name, or move it away");
      }
    });
    const Recipe recipe = receive_recipe(arguments.recipe, arguments.with, world);
    const Machine machine =
        arguments.machine.empty() ? calibrate(recipe, world, say) : with_host(arguments.machine, world);
    agree(world, [&] {
      if (speaks) write_atomically(arguments.out, to_yaml(machine));
    });
    if (speaks && !arguments.machine.empty()) {
      std::printf("wrote %s: copies %.1f GB/s to the GPU and %.1f GB/s back, updates %.1f GB/s of each rank\n",
                  arguments.out.c_str(), machine.host.to_gpu / 1e9, machine.host.to_host / 1e9,
                  machine.host.update / 1e9);
    } else if (speaks) {
      std::printf("wrote %s; its memory, %s a rank, is what was free just now: change it there, or use plan --memory\n",
                  arguments.out.c_str(), size_text(machine.memory).c_str());
    }
    return 0;
  });
}

}  // namespace

void add_plan_command(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* const command = app.add_subcommand(
      "plan", "Lists every mesh of N ranks: its memory, traffic and time, or why it is not possible");
  command
      ->add_option("recipe", arguments->recipe,
                   "The recipe. Sizes in its parallel.mesh are not used, but meshes have pp only if its pp is above "
                   "1 (--set parallel.mesh.pp=2) or parallel.pipeline is set")
      ->required();
  command->add_option("--ranks", arguments->ranks, "Total number of ranks")->check(whole_number(1))->type_name("N");
  command
      ->add_option("--hosts-of", arguments->ranks_per_host,
                   "Ranks on each host. Default: 8 GPUs on each host, or all CPU ranks on one host")
      ->check(whole_number(1))
      ->type_name("N");
  command->add_option("--memory", arguments->memory, "Memory of a rank's device: meshes that need more are listed last")
      ->type_name("80GiB");
  command
      ->add_option("--machine", arguments->machine,
                   "The machine on which steps are timed: a file of --calibrate, or a100, h100, h100-500w, h200, b200. "
                   "With --calibrate: the machine whose rates are kept, while copies between GPUs and their host, and "
                   "the host's updates, are measured")
      ->type_name("NAME");
  command
      ->add_option(
          "--search", arguments->search,
          "mesh: meshes, the best ones also in other orders of axes; all: every mesh also with the settings of "
          "docs/plan.md#settings, by their times on --machine")
      ->check(CLI::IsMember({"mesh", "all"}))
      ->capture_default_str();
  command->add_option("--top", arguments->top, "Meshes to print")
      ->check(whole_number(1))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--json", arguments->json, "Writes the meshes to a file, as JSON")->type_name("FILE");
  add_set_option(*command, arguments->with);
  command->footer(
      "For each mesh, the trainer makes the steps of the fullest rank on tensors without memory, so bytes are those\n"
      "of a run (docs/plan.md). The fastest meshes come first; without --machine nothing is timed, and those that\n"
      "send least among hosts come first.\n\n"
      "  meshtrain plan recipes/quickstart.yaml --ranks 8\n"
      "  meshtrain plan recipe.yaml --ranks 64 --hosts-of 8 --machine h100\n"
      "  mpirun -n 8 meshtrain plan recipe.yaml --calibrate --out machine.yaml");
  command->add_flag("--calibrate", arguments->calibrate,
                    "Measures this machine for the recipe's steps instead, on all ranks that mpirun starts");
  command->add_option("--out", arguments->out, "With --calibrate: the machine file to write, which must not exist")
      ->type_name("FILE")
      ->capture_default_str();
  command->callback([arguments, &status] {
    if (arguments->calibrate) {
      status = calibrate_on_ranks(*arguments);
      return;
    }
    if (arguments->ranks == 0) throw CLI::RequiredError("--ranks");
    plan(*arguments);
    status = 0;
  });
}

}  // namespace meshtrain
