#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "runtime/program/against/against.h"
#include "runtime/program/against/on_mesh.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/verify/cut.h"
#include "runtime/program/verify/verify.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

struct VerifyArguments {
  std::vector<std::filesystem::path> recipes;
  RecipeArguments recipe;
  VerifyOptions options;
  std::string fault;
  bool cut = false;
  std::filesystem::path against;  // a folder of tools/dump_step.py
};

void read_fault(const std::string& fault, VerifyOptions& options) {
  const std::string skip = "skip-reduce:";
  if (fault.empty()) return;
  if (!fault.starts_with(skip) || fault.size() == skip.size()) {
    throw InputError("--inject " + fault +
                     ": unknown fault: use skip-reduce:X, where X is an axis (pp, dp, cp, tp) or the purpose of a sum, "
                     "such as dp.gradients or tp.linear");
  }
  options.skipped_sums = fault.substr(skip.size());
}

void print_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Returns the recipe cut to the ranks of `world`, and says so.
Recipe cut_for(const Recipe& recipe, const Group& world) {
  Recipe small = cut(recipe, world.size());
  const auto described = [](const Recipe& of) {
    return MeshLayout::fit(of.parallel.mesh, of.parallel.order, ranks_of(of.parallel.mesh)).describe();
  };
  const bool is_other = small.parallel.mesh != recipe.parallel.mesh;
  if (world.rank() == 0 && is_other) {
    print_text(recipe.file.string() + ": cut to mesh " + described(small) + ", not the documented mesh " +
               described(recipe) + ": the same kinds of axes and modes\n");
  }
  return small;
}

int verify_all(VerifyArguments arguments, const Group& world) {
  const Progress progress("verification");
  read_fault(arguments.fault, arguments.options);
  arguments.recipe.overrides.emplace_back("model.init=random");  // config.json suffices
  std::vector<VerifySetup> setups;                               // every mistake is reported before anything runs
  for (const std::filesystem::path& file : arguments.recipes) {
    Recipe recipe = receive_recipe(file, arguments.recipe, world);
    recipe.file = file;  // as the user wrote it
    const std::string note = spread_over(recipe, arguments.recipe, world.size());
    if (world.rank() == 0 && !note.empty()) print_text(file.string() + ": " + note + "\n");
    if (arguments.cut) recipe = cut_for(recipe, world);
    setups.push_back(set_up_verification(recipe, arguments.options, world.size()));
  }
  std::vector<std::string> different;
  for (const VerifySetup& setup : setups) {
    if (!verify(setup, arguments.options, world, print_text)) different.push_back(setup.asked.file);
    if (world.rank() == 0) print_text("\n");
  }
  if (world.rank() == 0 && setups.size() > 1) {
    std::string text = std::to_string(setups.size() - different.size()) + " of " + std::to_string(setups.size()) +
                       " recipes compute on their mesh what one rank computes";
    for (const std::string& file : different) text += (&file == &different.front() ? "; DIFFERENT: " : ", ") + file;
    print_text(text + "\n");
  }
  return different.empty() ? 0 : 1;
}

int verify_step(const VerifyArguments& arguments, const Group& world) {
  if (!arguments.recipes.empty())
    throw InputError("--against: the folder has the model and the step: leave the recipes out");
  const std::string& mesh = arguments.recipe.mesh;
  VerifyOptions options = arguments.options;
  read_fault(arguments.fault, options);
  if (options.precision != "fp64" && options.precision != "fp32") {
    throw InputError("--against: one rank computes in fp64 or fp32");
  }
  if (options.shrink || arguments.cut || options.steps != 1)
    throw InputError("--against: the step is one of the complete model");
  if (mesh.empty() && world.size() > 1) {
    throw InputError("--against: give --mesh, the mesh of these " + std::to_string(world.size()) +
                     " ranks, or start meshtrain without mpirun");
  }
  if (mesh.empty() && (!arguments.recipe.overrides.empty() || !arguments.fault.empty())) {
    throw InputError("--against: --set and --inject are for the step on a mesh; give --mesh");
  }
  std::optional<StepOnMesh> on_mesh;  // every mistake is reported before anything runs
  if (!mesh.empty()) on_mesh.emplace(arguments.against, mesh, arguments.recipe.overrides, options, world);
  bool equal = true;
  agree(world, [&] {  // the other ranks wait for the comparison with one
    if (world.rank() != 0) return;
    equal = verify_against(arguments.against, {options.precision, options.every_parameter}, print_text);
  });
  if (!on_mesh) return equal ? 0 : 1;
  if (world.rank() == 0) print_text("\n");
  const bool same = on_mesh->verify(print_text);
  return equal && same ? 0 : 1;
}

int verify_on_ranks(const VerifyArguments& arguments) {
  const Group world = connect_world();
  if (!arguments.against.empty()) return run_on_all_ranks(world, [&] { return verify_step(arguments, world); });
  if (arguments.recipes.empty()) throw InputError("verify: give a recipe, or --against FOLDER");
  return run_on_all_ranks(world, [&] { return verify_all(arguments, world); });
}

}  // namespace

void add_verify_command(CLI::App& app, int& status) {
  auto arguments = std::make_shared<VerifyArguments>();
  VerifyOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "verify",
      "Proves that a mesh computes what one rank computes. The recipe's model, with random weights, is trained on the\n"
      "mesh and on one rank from the same seed and data; loss, gradient norm, every gradient and every updated weight\n"
      "are compared. Exit status: 0 equal, 1 different, 2 the input is wrong.\n\n"
      "  mpirun -n 8 meshtrain verify recipes/quickstart.yaml --mesh dp=2,tp=2,cp=2\n"
      "  mpirun -n 4 meshtrain verify recipes/hf_3d/a_dp2_tp2.yaml recipes/hf_3d/e_cp4.yaml --shrink\n"
      "  meshtrain verify --against STEP      a step of another program, against one rank (docs/against.md)\n"
      "  mpirun -n 4 meshtrain verify --against STEP --mesh dp=2,tp=2      and the same step on this mesh");
  command->add_option("recipes", arguments->recipes, "Recipes, YAML files")->type_name("RECIPE...");
  command
      ->add_option("--against", arguments->against,
                   "Compare a step of another program, which tools/dump_step.py wrote to this folder, with one rank")
      ->type_name("FOLDER");
  add_recipe_options(*command, arguments->recipe);
  command->add_flag("--shrink", options.shrink,
                    "Compare a small model that the mesh cuts in the same way: heads, KV heads, feed-forward and "
                    "vocabulary keep their divisors");
  command
      ->add_option("--precision", options.precision,
                   "fp64, fp32, bf16, bf16_mixed or fp16_mixed; decides how close the two must be")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "bf16_mixed", "fp16_mixed"}))
      ->type_name("PRECISION");
  command->add_option("--device", options.device, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->type_name("DEVICE");
  command->add_option("--steps", options.steps, "Steps that both train; gradients are those of the first")
      ->capture_default_str()
      ->check(whole_number(1))
      ->type_name("N");
  command->add_flag("--cut", arguments->cut,
                    "Reduce a mesh with more ranks than were started to one with the same kinds of axes and modes; "
                    "sequence and batch are reduced too");
  command->add_flag("--all", options.every_parameter, "Print every parameter, not only the worst");
  command
      ->add_option("--inject", arguments->fault,
                   "Break the mesh on purpose, to see it found: skip-reduce:X leaves out the sums of an axis (pp, dp, "
                   "cp, tp) or for a purpose (dp.gradients, tp.linear, ...)")
      ->type_name("FAULT");
  command->callback([arguments, &status] { status = verify_on_ranks(*arguments); });
}

}  // namespace meshtrain
