#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "mesh/backends/mpi/launcher.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/version.h"
#include "runtime/program/yaml/suggest.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/foreign_options.h"
#include "tools/meshtrain/report.h"

namespace meshtrain {
namespace {

constexpr int kInputError = 2;

/// "train" of the command that the arguments began with, as far as it was understood.
std::string chosen_command(const CLI::App& app) {
  std::string path = "meshtrain";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

const CLI::App* innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return at;
}

/// The names of the commands that may follow `app`.
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// The command or the option that a word which nobody expected was meant to be.
std::string suggestion(const CLI::App& app, const std::string& word) {
  const CLI::App* at = innermost(app);
  std::vector<std::string> known = commands_of(*at);
  for (const CLI::Option* option : at->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  if (const std::string foreign = at == &app ? foreign_command(word) : ""; !foreign.empty()) return foreign;
  const std::string meant = nearest(word, known);
  if (!meant.empty()) return "; did you mean " + meant + "?";
  // Options of other launchers and trainers, where this command has a recipe.
  const bool has_recipe = std::find(known.begin(), known.end(), "--set") != known.end();
  return has_recipe ? foreign_option(word) : "";
}

/// Adds the option --log-level to each command that has no commands of its own.
void add_log_level(CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands([](CLI::App*) { return true; });
  for (CLI::App* command : commands) add_log_level(*command);
  if (!commands.empty()) return;
  const auto refusal = [](const std::string& word) -> std::string {
    try {
      log_level_of(word);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  app.add_option_function<std::string>(
         "--log-level", [](const std::string& word) { set_log_level(log_level_of(word)); },
         "Lowest level of the log lines that are printed: info, warning, error or off. Above info, progress is not "
         "printed either")
      ->check(CLI::Validator(refusal, ""))
      ->default_str("info")
      ->type_name("LEVEL");
}

/// Refuses values of flags: by default --resume=10 would be --resume, and --resume=-1 nothing.
void refuse_values_of_flags(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_values_of_flags(*command);
}

/// Returns a text about the first argument that gives a flag of `app` a value; empty when none does.
std::string describe_flag_with_value(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const size_t end = argument.find('=');
    if (end == std::string::npos || !argument.starts_with("--")) continue;
    const std::string name = argument.substr(0, end), value = argument.substr(end + 1);
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr || option->get_items_expected_max() != 0 || value == "true") continue;
    const bool is_step = name == "--resume" && !value.empty() && std::ranges::all_of(value, ::isdigit);
    return name + " takes no value: leave out =" + value +
           (is_step ? ", or give --resume-step " + value + " to continue from that checkpoint" : "");
  }
  return "";
}

InputError explain(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  const std::string command = chosen_command(app), help = ": see " + command + " --help";
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string flag = describe_flag_with_value(*innermost(app), arguments);
    if (!flag.empty()) return InputError(command + ": " + flag);
  }
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  const std::vector<std::string> commands = commands_of(*innermost(app));
  const bool lacks_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !commands.empty();
  if (!rest.empty() && (lacks_command || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
    return InputError(command + " does not know " + rest.front() + suggestion(app, rest.front()) + help);
  }
  if (lacks_command) return InputError(command + ": give one of its commands: " + joined(commands) + help);
  return InputError(command + ": " + error.what() + help);
}

int run(int argc, char** argv) {
  CLI::App app(
      "Trains Llama-family language models with pipeline, data, context and tensor parallelism. Started alone it is\n"
      "one rank; under tools/ranks (this machine), mpirun or srun it is as many ranks as they start, and computes\n"
      "the same.\n\n"
      "  meshtrain data prepare --bytes README.md docs --out data/mine.bin\n"
      "  tools/ranks 8 meshtrain train recipes/quickstart.yaml --mesh dp=2,tp=2,cp=2\n"
      "  mpirun -n 8 meshtrain verify recipes/quickstart.yaml --mesh dp=2,tp=2,cp=2",
      "meshtrain");
  app.set_version_flag("--version", std::string("meshtrain ") + version());
  app.footer(
      "meshtrain COMMAND --help describes a command. Commands that take longer than 10 s report their progress on "
      "stderr.\n"
      "--log-level LEVEL, after the command, chooses the log lines that are printed (docs/metrics.md).\n"
      "Exit status: 0 done; 1 failed at run time; 2 the input is wrong; 75 stopped on request, to be continued.");
  app.get_formatter()->column_width(34);
  app.require_subcommand(0, 1);
  int status = 0;
  add_train_command(app, status);
  add_verify_command(app, status);
  add_plan_command(app, status);
  add_recipe_command(app, status);
  add_reproduce_command(app, status);
  add_mesh_command(app, status);
  add_data_command(app, status);
  add_checkpoint_command(app, status);
  add_generate_command(app, status);
  add_evaluate_command(app, status);
  add_diagnose_command(app, status);
  add_report_command(app, status);
  add_log_level(app);
  refuse_values_of_flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    throw explain(app, error, {argv + 1, argv + argc});
  }
  if (app.get_subcommands().empty()) {
    throw InputError("give a command: " + joined(commands_of(app)) + "; meshtrain --help says what they do");
  }
  return status;
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is a full disk: write() tells
  try {
    return meshtrain::run(argc, argv);
  } catch (const std::exception& error) {
    const meshtrain::Failure failure = meshtrain::describe_failure(error, "");
    const bool is_of_all = failure.status == meshtrain::kInputError &&  // all ranks find it, and one of them reports it
                           dynamic_cast<const meshtrain::LaunchError*>(&error) == nullptr;
    if (!is_of_all || meshtrain::is_announced_first()) print_failure(failure);
    return failure.status;
  }
}
