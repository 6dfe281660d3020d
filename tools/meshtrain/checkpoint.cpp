#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "runtime/program/convert/export_adapter.h"
#include "runtime/program/convert/export_checkpoint.h"
#include "runtime/program/convert/import_checkpoint.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/checkpoint/inspect.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/computing_arguments.h"
#include "tools/meshtrain/launcher.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

struct CheckpointArguments {
  std::filesystem::path path;
  bool pieces = false;
};

void add_path(CLI::App& command, CheckpointArguments& arguments) {
  command
      .add_option("path", arguments.path, "A checkpoint's folder, or a run directory, whose newest checkpoint is taken")
      ->required()
      ->type_name("FOLDER");
}

void add_checkpoint_inspect(CLI::App& checkpoint, int& status) {
  CLI::App* command =
      checkpoint.add_subcommand("inspect", "Prints the contents of a checkpoint: step, mesh, sizes, tensors, pieces");
  const auto arguments = std::make_shared<CheckpointArguments>();
  add_path(*command, *arguments);
  command->add_flag("--pieces", arguments->pieces,
                    "Also prints each piece: its box in the tensor, its file, its checksum");
  command->footer("Example: meshtrain checkpoint inspect runs/quickstart --pieces");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain checkpoint inspect");
    const Progress progress("inspection of " + arguments->path.string());
    std::fputs(inspect_checkpoint(find_checkpoint(arguments->path), arguments->pieces).c_str(), stdout);
    status = 0;
  });
}

/// Says what is damaged; the exit status.
int report_damage(const std::filesystem::path& folder) try {
  const VerifiedCheckpoint verified = verify_checkpoint(folder);
  for (const std::string& line : verified.damage) std::printf("%s\n", line.c_str());
  const std::string verdict = verified.damage.empty()
                                  ? "every byte is intact"
                                  : counted(verified.num_damaged, "piece is", "pieces are") + " missing or damaged";
  std::printf("%s: %s, %s: %s\n", folder.c_str(), counted(verified.num_pieces, "piece").c_str(),
              counted(verified.num_bytes, "byte").c_str(), verdict.c_str());
  return verified.damage.empty() ? 0 : 1;
} catch (const DamagedCheckpoint& error) {
  std::printf("%s\n", error.what());
  return 1;
}

void add_checkpoint_verify(CLI::App& checkpoint, int& status) {
  CLI::App* command = checkpoint.add_subcommand(
      "verify",
      "Reads a checkpoint and checks every byte of its pieces and of manifest.json; status 1 when one is damaged");
  const auto arguments = std::make_shared<CheckpointArguments>();
  add_path(*command, *arguments);
  command->footer("Example: meshtrain checkpoint verify runs/quickstart/checkpoints/step-00000060");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain checkpoint verify");
    const Progress progress("verification of " + arguments->path.string());
    status = report_damage(find_checkpoint(arguments->path));
  });
}

struct ExportArguments {
  std::filesystem::path path, out;
  std::string dtype;
  uint64_t max_file_bytes = kMostFileBytes;
  std::filesystem::path tokenizer, base;
  bool adapter = false;
};

std::optional<at::ScalarType> dtype_in(const ExportArguments& arguments) {
  return arguments.dtype.empty() ? std::nullopt : std::optional(dtype_of(arguments.dtype));
}

int export_adapter_to(const ExportArguments& arguments) {
  if (!arguments.tokenizer.empty()) throw InputError("--tokenizer: an adapter is written without a tokenizer");
  if (!arguments.base.empty()) throw InputError("--base: an adapter is written without its base");
  const ExportedAdapter exported = export_adapter(find_checkpoint(arguments.path), arguments.out, dtype_in(arguments));
  std::printf("%s: the adapter of step %s, %s, %s\n", arguments.out.c_str(), with_separators(exported.step).c_str(),
              counted(exported.num_tensors, "tensor").c_str(), counted(exported.num_bytes, "byte").c_str());
  return 0;
}

int export_to(const ExportArguments& arguments) {
  if (arguments.adapter) return export_adapter_to(arguments);
  if (arguments.max_file_bytes == 0)
    throw InputError("--max-file-size: 0 bytes hold no tensor: give a size, such as 5GiB");
  ExportOptions options;
  options.dtype = dtype_in(arguments);
  options.max_file_bytes = static_cast<int64_t>(std::min<uint64_t>(arguments.max_file_bytes, INT64_MAX));
  options.tokenizer = arguments.tokenizer;
  options.base = arguments.base;
  const ExportedCheckpoint exported = export_checkpoint(find_checkpoint(arguments.path), arguments.out, options);
  std::printf("%s: the weights of step %s, %s in %s, %s%s\n", arguments.out.c_str(),
              with_separators(exported.step).c_str(), counted(exported.num_tensors, "tensor").c_str(),
              safetensors_dtype(exported.dtype)->c_str(), counted(exported.num_bytes, "byte").c_str(),
              describe(exported.carried).c_str());
  return 0;
}

void add_export(CLI::App& checkpoint, int& status) {
  CLI::App* command = checkpoint.add_subcommand(
      "export",
      "Writes the weights of a checkpoint, of any mesh, as a Hugging Face folder: config.json, safetensors,\n"
      "generation_config.json and the tokenizer's files. Runs in one process, which holds two tensors at a time.");
  const auto arguments = std::make_shared<ExportArguments>();
  command
      ->add_option("path", arguments->path,
                   "A checkpoint's folder, or a run directory, whose newest checkpoint is taken")
      ->required()
      ->type_name("FOLDER");
  command->add_option("out", arguments->out, "The folder to write, which must be empty or absent")
      ->required()
      ->type_name("OUT");
  command
      ->add_option(
          "--dtype", arguments->dtype,
          "Dtype of the weights: fp64, fp32, bf16 or fp16. Default: the dtype in which the recipe's layers compute")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}))
      ->type_name("DTYPE");
  command
      ->add_option("--max-file-size", arguments->max_file_bytes,
                   "Largest size of a safetensors file, unless a single tensor is larger; several files get an index. "
                   "Default: 5GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("SIZE");
  command
      ->add_option(
          "--tokenizer", arguments->tokenizer,
          "A folder with a tokenizer's files, or its tokenizer.json. Default: the recipe's model.hf, if it exists")
      ->type_name("PATH");
  command->add_flag("--adapter", arguments->adapter,
                    "Writes only the adapters, as a PEFT folder. --dtype then defaults to the dtype of the checkpoint");
  command->add_option("--base", arguments->base, kBaseHelp)->type_name("FOLDER");
  command->footer("Example: meshtrain checkpoint export runs/mine models/mine --dtype bf16");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain checkpoint export");
    const Progress progress("export to " + arguments->out.string());
    status = export_to(*arguments);
  });
}

struct ImportArguments {
  std::filesystem::path hf, recipe, run_dir;
  RecipeArguments with;
};

void add_import(CLI::App& checkpoint, int& status) {
  CLI::App* command = checkpoint.add_subcommand(
      "import",
      "Writes the weights of a Hugging Face folder as a run's checkpoint of step 0, from which\n"
      "`meshtrain train RECIPE --resume` begins on any mesh. Runs in one process, which holds one tensor at a time.");
  const auto arguments = std::make_shared<ImportArguments>();
  command->add_option("hf", arguments->hf, "The folder: config.json and *.safetensors")
      ->required()
      ->type_name("FOLDER");
  command->add_option("recipe", arguments->recipe, "The recipe of the run; its model must be the one in the folder")
      ->required()
      ->type_name("RECIPE");
  add_set_option(*command, arguments->with);
  command->add_option("--run-dir", arguments->run_dir, "Folder of the run. Default: runs/<recipe name>")
      ->type_name("FOLDER");
  command->footer(
      "Example: meshtrain checkpoint import models/SmolLM2-1.7B recipe.yaml --run-dir runs/mine\n"
      "         meshtrain train recipe.yaml --run-dir runs/mine --resume");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain checkpoint import");
    const Progress progress("import of " + arguments->hf.string());
    Recipe recipe = load_recipe(arguments->recipe, arguments->with.overrides, "");
    take_layouts(recipe);
    const ImportedCheckpoint imported = import_checkpoint(arguments->hf, recipe, arguments->run_dir);
    for (const std::string& line : imported.warnings) log_warning(line);
    std::printf("%s: the weights of %s; begin with meshtrain train --resume\n", imported.folder.c_str(),
                arguments->hf.c_str());
    status = 0;
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "checkpoint", "Inspects and verifies checkpoints, and converts them to and from Hugging Face folders");
  command->require_subcommand(1);
  add_checkpoint_inspect(*command, status);
  add_checkpoint_verify(*command, status);
  add_export(*command, status);
  add_import(*command, status);
}

}  // namespace meshtrain
