#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/checkpoint/inspect.h"
#include "runtime/telemetry/console.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

struct CheckpointArguments {
  std::filesystem::path path;
  bool pieces = false;
};

void add_path(CLI::App& command, CheckpointArguments& arguments) {
  command.add_option("path", arguments.path, "A checkpoint's folder, or a run directory: then the newest that it has")
      ->required()
      ->type_name("FOLDER");
}

void add_inspect(CLI::App& checkpoint, int& status) {
  CLI::App* command =
      checkpoint.add_subcommand("inspect", "Prints what is in a checkpoint: step, mesh, sizes, tensors, pieces");
  const auto arguments = std::make_shared<CheckpointArguments>();
  add_path(*command, *arguments);
  command->add_flag("--pieces", arguments->pieces, "Each piece too: its box in the tensor, its file, its checksum");
  command->footer("Example: meshtrain checkpoint inspect runs/quickstart --pieces");
  command->callback([arguments, &status] {
    std::fputs(inspect_checkpoint(find_checkpoint(arguments->path), arguments->pieces).c_str(), stdout);
    status = 0;
  });
}

void add_verify(CLI::App& checkpoint, int& status) {
  CLI::App* command = checkpoint.add_subcommand(
      "verify", "Reads a checkpoint and proves every byte; status 1 when pieces are missing or damaged");
  const auto arguments = std::make_shared<CheckpointArguments>();
  add_path(*command, *arguments);
  command->footer("Example: meshtrain checkpoint verify runs/quickstart/checkpoints/step-00000060");
  command->callback([arguments, &status] {
    const std::filesystem::path folder = find_checkpoint(arguments->path);
    const VerifiedCheckpoint verified = verify_checkpoint(folder);
    for (const std::string& line : verified.damage) std::printf("%s\n", line.c_str());
    const std::string pieces =
        with_separators(verified.num_pieces) + " pieces, " + with_separators(verified.num_bytes) + " bytes: ";
    const std::string verdict =
        verified.damage.empty()
            ? "every byte is as it was written"
            : with_separators(static_cast<int64_t>(verified.damage.size())) + " pieces are missing or damaged";
    std::printf("%s: %s%s\n", folder.c_str(), pieces.c_str(), verdict.c_str());
    status = verified.damage.empty() ? 0 : 1;
  });
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("checkpoint", "Looks into checkpoints, and proves them");
  command->require_subcommand(1);
  add_inspect(*command, status);
  add_verify(*command, status);
}

}  // namespace meshtrain
