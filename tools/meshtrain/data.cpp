#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/prepare.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

struct PrepareArguments {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;
  std::string dtype = "uint16";
  std::optional<int64_t> separator;
};

struct InspectArguments {
  std::filesystem::path file;
  std::string dtype = "uint16";
  int64_t count = 32;
  std::optional<int64_t> separator;
};

constexpr const char* kDtypeHelp = "Integer of a token in the file: uint8, uint16 or uint32";

void add_prepare(CLI::App& data, int& status) {
  CLI::App* command = data.add_subcommand("prepare", "Makes a token file of text, one token a byte");
  const auto arguments = std::make_shared<PrepareArguments>();
  command->add_option("--bytes", arguments->inputs, "Files, and folders for all files below them, joined in this order")
      ->required()
      ->type_name("FILE...");
  command->add_option("--out", arguments->output, "The token file")->required()->type_name("FILE");
  command->add_option("--dtype", arguments->dtype, kDtypeHelp)->capture_default_str()->type_name("TYPE");
  command
      ->add_option("--separator", arguments->separator,
                   "Token to write after each file that is not empty: the one to name as data.documents")
      ->type_name("ID");
  command->footer(
      "Example: meshtrain data prepare --bytes README.md docs --out data/mine.bin --dtype uint8\n"
      "Packed documents: meshtrain data prepare --bytes docs --out data/docs.bin --separator 256");
  command->callback([arguments, &status] {
    const int64_t tokens = prepare_bytes(arguments->inputs, arguments->output, arguments->dtype, arguments->separator);
    std::printf("%s: %lld tokens, %s\n", arguments->output.c_str(), static_cast<long long>(tokens),
                arguments->dtype.c_str());
    status = 0;
  });
}

void add_inspect(CLI::App& data, int& status) {
  CLI::App* command = data.add_subcommand("inspect", "Looks into a token file: how many tokens, which, the first ones");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("file", arguments->file, "The token file")->required()->type_name("FILE");
  command->add_option("--dtype", arguments->dtype, kDtypeHelp)->capture_default_str()->type_name("TYPE");
  command->add_option("--count", arguments->count, "How many of the first tokens to show")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  command->add_option("--separator", arguments->separator, "Token that ends a document: says how many there are")
      ->type_name("ID");
  command->footer("Example: meshtrain data inspect data/mine.bin --dtype uint8 --count 100");
  command->callback([arguments, &status] {
    std::string text = inspect_tokens(arguments->file, arguments->dtype, arguments->count, arguments->separator);
    if (text.empty() || text.back() != '\n') text += '\n';
    std::fputs(text.c_str(), stdout);
    status = 0;
  });
}

}  // namespace

void add_data_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("data", "Makes token files, and looks into them");
  command->require_subcommand(1);
  add_prepare(*command, status);
  add_inspect(*command, status);
}

}  // namespace meshtrain
