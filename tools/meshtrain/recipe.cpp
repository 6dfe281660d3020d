#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"
#include "mesh/base/size_text.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/recipe/explain.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/launcher.h"

namespace meshtrain {
namespace {

struct RecipeCommand {
  std::optional<std::string> key;
  std::optional<std::filesystem::path> from, out;
};

/// Returns the exit status: 1 when a setting that changes numbers was not converted.
int convert(const RecipeCommand& asked) {
  std::error_code ignored;
  if (asked.out && std::filesystem::exists(*asked.out, ignored)) {
    throw InputError("--out " + asked.out->string() + " already exists: give another name, or move it away");
  }
  const ConvertedRecipe recipe = recipe_from(*asked.from);
  if (asked.out) {
    write_atomically(*asked.out, recipe.text);
    std::printf("wrote %s; its comments list what was not converted, and what is still to be given\n",
                asked.out->c_str());
  } else {
    std::fputs(recipe.text.c_str(), stdout);
  }
  if (recipe.num_lost == 0) return 0;
  log_failure(counted(recipe.num_lost, "setting") + (recipe.num_lost == 1 ? " that changes" : " that change") +
              " numbers could not be converted: see the end of the recipe");
  return 1;
}

}  // namespace

void add_recipe_command(CLI::App& app, int& status) {
  const auto asked = std::make_shared<RecipeCommand>();
  CLI::App* command = app.add_subcommand(
      "recipe",
      "Explains the keys of a recipe, and converts configurations of other trainers into recipes.\n\n"
      "  meshtrain recipe --explain train.precision\n"
      "  meshtrain recipe --from ds_config.json --out mine.yaml");
  CLI::Option* explain =
      command
          ->add_option(
              "--explain", asked->key,
              "Prints type, default, allowed words, bounds and meaning of a key; without KEY, a line for each key")
          ->type_name("[KEY]")
          ->expected(0, 1);
  CLI::Option* from =
      command
          ->add_option("--from", asked->from,
                       "Prints the recipe that does the same as a configuration of accelerate, axolotl or NeMo "
                       "Automodel (.yaml), OLMo-core (.yaml, .json), DeepSpeed or PEFT (.json), or as the arguments of "
                       "Megatron-LM or torchtitan in a text file (.txt). From TRL it converts the LoRA settings. "
                       "Comments list what was not converted and what is still to be given. Exit status: 1 when "
                       "something that changes numbers was not converted, 2 when the file cannot be read")
          ->type_name("FILE");
  CLI::Option* out = command->add_option("--out", asked->out, "With --from: the file to write, which must not exist")
                         ->type_name("FILE");
  explain->excludes(from);
  out->needs(from);
  command->callback([asked, explain, from, &status] {
    refuse_several_ranks("meshtrain recipe");
    status = 0;
    if (from->count() > 0) {
      status = convert(*asked);
      return;
    }
    if (explain->count() == 0) throw InputError("give --explain [KEY] or --from FILE: see meshtrain recipe --help");
    const std::string key = asked->key.value_or("");
    std::fputs((key.empty() ? list_keys() : explain_key(key)).c_str(), stdout);
  });
}

}  // namespace meshtrain
