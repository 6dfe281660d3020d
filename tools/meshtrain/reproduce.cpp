#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "runtime/program/published/text.h"
#include "runtime/program/reproduce/text.h"
#include "runtime/program/verify/cut.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/launcher.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

struct ReproduceArguments {
  std::string name;
  std::filesystem::path recipes = "recipes";
  int64_t ranks = 0;
  bool published = false, markdown = false, no_verify = false;
};

/// Returns the most ranks that this machine holds, for a model as `verify --shrink` makes it.
int64_t ranks_of_machine() {
  constexpr int64_t kBytesOfRank = int64_t{400} << 20, kMost = 8;
  const int64_t ranks = std::clamp<int64_t>(available_host_memory() / kBytesOfRank, 1, kMost);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(ranks)));
}

/// Replaces this process by a verification on ranks of this machine. Returns only when tools/ranks does not exist.
void verify_in_place(const DocumentedRecipe& recipe, const ReproduceArguments& arguments) {
  const int64_t most = arguments.ranks > 0 ? arguments.ranks : ranks_of_machine();
  const bool is_alone = recipe.num_ranks() == 1 || most == 1;
  const int64_t ranks = is_alone ? 1 : ranks_of(cut(recipe.recipe, most).parallel.mesh);
  const std::filesystem::path starter = arguments.recipes / ".." / "tools" / "ranks";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words = {
      starter.lexically_normal(), std::to_string(ranks), program, "verify", recipe.file, "--shrink"};
  if (is_alone && recipe.num_ranks() > 1) {
    throw InputError("--ranks " + std::to_string(most) + ": a mesh needs at least 2 ranks to be compared with one");
  }
  if (!is_alone) words.emplace_back("--cut");
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  std::printf("\n%s\n", line.c_str());
  std::fflush(stdout);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw InputError(words.front() + ": cannot be started: start the line above by hand, or give --no-verify");
}

int reproduce(const ReproduceArguments& arguments) {
  refuse_several_ranks("meshtrain reproduce");
  if (!arguments.name.empty()) {
    const Progress progress("plan of " + arguments.name);
    const DocumentedRecipe recipe = documented_recipe(arguments.recipes, arguments.name);
    std::fputs(describe(recipe).c_str(), stdout);
    if (!arguments.no_verify) verify_in_place(recipe, arguments);
    return 0;
  }
  const std::vector<DocumentedRecipe> recipes = documented_recipes(arguments.recipes);
  if (arguments.published) {
    const Progress progress("predictions");
    const std::vector<PublishedForecast> forecasts = predict_published(recipes);
    std::printf("%s\n%s\n", to_text(forecasts).c_str(), to_text(score_of(forecasts)).c_str());
  } else {
    std::fputs((arguments.markdown ? list_markdown(recipes) : list_text(recipes)).c_str(), stdout);
  }
  return 0;
}

}  // namespace

void add_reproduce_command(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<ReproduceArguments>();
  CLI::App* const command =
      app.add_subcommand("reproduce",
                         "Lists the documented configurations that have a recipe. Given the name of one, prints where "
                         "it\nis documented, the command, the files to fetch and the plan for the published hardware "
                         "next to the\npublished figure, and verifies its mesh against one rank with a small model.\n\n"
                         "  meshtrain reproduce\n"
                         "  meshtrain reproduce axolotl/qwen3_8b_fsdp_tp_cp");
  CLI::Option* const name =
      command->add_option("name", arguments->name, "A recipe of the list, its file, or the end of its name");
  command->add_option("--recipes", arguments->recipes, "The folder of the recipes")
      ->capture_default_str()
      ->type_name("FOLDER");
  CLI::Option* const ranks =
      command
          ->add_option("--ranks", arguments->ranks,
                       "Maximum number of ranks for the verification; a larger mesh is reduced to one with the same "
                       "kinds of axes and modes. Default: as many as fit in this machine's memory, at most 8")
          ->check(whole_number(1))
          ->type_name("N")
          ->needs(name);
  command->add_flag("--no-verify", arguments->no_verify, "Skip the verification")->needs(name)->excludes(ranks);
  command
      ->add_flag("--published", arguments->published,
                 "Print the predicted and the published time of each recipe that has one, and the errors")
      ->excludes(name);
  command->add_flag("--markdown", arguments->markdown, "Print the list as the table of docs/reproduce.md")
      ->excludes(name);
  command->callback([arguments, &status] { status = reproduce(*arguments); });
}

}  // namespace meshtrain
