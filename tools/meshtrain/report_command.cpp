#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/progress.h"
#include "runtime/program/report/page.h"
#include "runtime/program/report/page_server.h"
#include "runtime/program/report/report_json.h"
#include "runtime/program/report/summary.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/launcher.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

constexpr int kUsualPort = 8050;

struct ReportArguments {
  std::vector<std::filesystem::path> runs;
  std::filesystem::path out;
  std::optional<int> watch;  // port
};

std::vector<RunReader> open_runs(const std::vector<std::filesystem::path>& folders) {
  std::vector<RunReader> runs;
  for (const std::filesystem::path& folder : folders) runs.emplace_back(folder);
  for (RunReader& run : runs) {  // those of one name are told apart by their paths
    const auto same = [&](const RunReader& other) { return other.record().name == run.record().name; };
    if (std::count_if(runs.begin(), runs.end(), same) < 2) continue;
    const std::string name = run.record().name;
    for (RunReader& other : runs) {
      if (other.record().name == name) other.rename(other.record().folder.string());
    }
  }
  return runs;
}

void report(const ReportArguments& arguments) {
  if (!arguments.out.empty() && arguments.watch) throw InputError("give --out or --watch, not both");
  std::vector<RunReader> runs = open_runs(arguments.runs);
  if (arguments.watch) {
    serve_page(runs, *arguments.watch, [](int port) {
      std::printf("http://127.0.0.1:%d shows the report and follows the run; Ctrl-C ends it\n", port);
      std::fflush(stdout);
    });
    return;
  }
  const Progress progress("report");
  std::vector<const RunRecord*> records;
  for (RunReader& run : runs) {
    run.refresh();
    records.push_back(&run.record());
  }
  if (arguments.out.empty()) {
    std::fputs(summary_text(records).c_str(), stdout);
    return;
  }
  write_atomically(arguments.out, make_page(report_json(records)));
  std::printf("%s written\n", arguments.out.c_str());
}

}  // namespace

void add_report_command(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand(
      "report", "Shows runs: loss, speed, memory, where the time goes, as text, as a page with charts, or live");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("run_dir", arguments->runs, "Run directories; several are drawn in the same charts")
      ->required()
      ->type_name("RUN_DIR");
  command->add_option("--out", arguments->out, "Write a page instead of text: one file that needs no network")
      ->type_name("FILE.html");
  CLI::Option* watch =
      command
          ->add_option_function<int>(
              "--watch", [arguments](int port) { arguments->watch = port; },
              "Serve the page on 127.0.0.1 and follow the runs until Ctrl-C; give it after the folders. "
              "0: any free port")
          ->expected(0, 1)
          ->default_str(std::to_string(kUsualPort))
          ->type_name("[PORT]");
  watch->check(CLI::Range(0, 65535));
  command->footer(
      "Needs no ranks. Reads runs that are still running, old runs, and damaged files. Examples:\n"
      "  meshtrain report runs/mine\n"
      "  meshtrain report runs/mine runs/other --out report.html\n"
      "  meshtrain report runs/mine --watch 8051");
  command->callback([arguments, &status] {
    refuse_several_ranks("meshtrain report");
    report(*arguments);
    status = 0;
  });
}

}  // namespace meshtrain
