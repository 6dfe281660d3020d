#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "mesh/error.h"
#include "runtime/files/output_file.h"
#include "runtime/foreign/foreign_config.h"
#include "runtime/recipe/explain.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/launcher.h"

namespace meshtrain {
namespace {

struct RecipeCommand {
  std::optional<std::string> key;
  std::optional<std::filesystem::path> from, out;
};

void convert(const RecipeCommand& asked) {
  const std::string text = recipe_from(*asked.from);
  if (!asked.out) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::error_code ignored;
  if (std::filesystem::exists(*asked.out, ignored)) {
    throw InputError("--out " + asked.out->string() + ": it exists: give another name, or move it away");
  }
  write_whole(*asked.out, text);
  std::printf("wrote %s; its comments say what was not converted, and what is still to be given\n", asked.out->c_str());
}

}  // namespace

void add_recipe_command(CLI::App& app, int& status) {
  const auto asked = std::make_shared<RecipeCommand>();
  CLI::App* command = app.add_subcommand("recipe",
                                         "Says what the keys of a recipe mean, and makes recipes of configurations of "
                                         "torchtitan, accelerate, DeepSpeed and Megatron-LM.\n\n"
                                         "  meshtrain recipe --explain train.precision\n"
                                         "  meshtrain recipe --from llama3_8b.toml --out llama3_8b.yaml");
  CLI::Option* explain =
      command
          ->add_option("--explain", asked->key,
                       "Kind, default, words, bounds and meaning of a key; without one a line for each key")
          ->type_name("[KEY]")
          ->expected(0, 1);
  CLI::Option* from =
      command
          ->add_option("--from", asked->from,
                       "A configuration of torchtitan (.toml), accelerate (.yaml) or DeepSpeed (.json), or a script "
                       "with the arguments of Megatron-LM (.sh, .txt): prints the recipe that does the same. What "
                       "cannot be converted, and what is still to be given, are comments in it")
          ->type_name("FILE");
  CLI::Option* out = command->add_option("--out", asked->out, "With --from: the file to write, which must not exist")
                         ->type_name("FILE");
  explain->excludes(from);
  out->needs(from);
  command->callback([asked, explain, from, &status] {
    refuse_several_ranks("meshtrain recipe");
    status = 0;
    if (from->count() > 0) return convert(*asked);
    if (explain->count() == 0) throw InputError("give --explain [KEY] or --from FILE: see meshtrain recipe --help");
    const std::string key = asked->key.value_or("");
    std::fputs((key.empty() ? list_keys() : explain_key(key)).c_str(), stdout);
  });
}

}  // namespace meshtrain
