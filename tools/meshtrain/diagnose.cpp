#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "mesh/error.h"
#include "runtime/telemetry/progress.h"
#include "runtime/watch/flight_files.h"
#include "runtime/watch/stall.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

std::string state_of(const RankSight& rank) {
  const Activity& activity = rank.activity;
  if (activity.halted_ms > 0) return "did not run for " + in_seconds(activity.halted_ms) + " before this record";
  if (!rank.runs) return "has no record";
  if (!activity.waits) return "computes";
  const GroupSight* const group = activity.find(activity.awaited_group);
  return "waits in number " + std::to_string(activity.awaited) + " of group " +
         (group != nullptr ? group->name.text() : "?");
}

std::string last_of(const RankSight& rank) {
  const GroupSight& last = rank.activity.last;
  if (last.pending.number == 0) return "-";
  const std::string place = last.pending.place.text();
  return describe(last.pending) + ", number " + std::to_string(last.pending.in_group) + " of group " +
         last.name.text() + (place.empty() ? "" : ", in " + place);
}

int diagnose(const std::filesystem::path& run) {
  if (!std::filesystem::is_directory(run))
    throw InputError(run.string() + " is no run directory: there is no such folder");
  const Progress progress("flight records of " + run.string());
  const std::vector<RankSight> ranks = read_flights(run / "flight");
  for (const RankSight& rank : ranks) {
    std::printf("%s on %s\n  in    %s\n  state %s, unchanged for %.1f s\n  last  %s\n", rank.name.c_str(),
                rank.host.c_str(), rank.phase.c_str(), state_of(rank).c_str(),
                static_cast<double>(rank.activity.still_ms) / 1e3, last_of(rank).c_str());
  }
  const auto verdict = judge(ranks);
  std::printf("\n%s\n", verdict ? verdict->text.c_str() : "no rank waited for a collective");
  return 0;
}

}  // namespace

void add_diagnose_command(CLI::App& app, int& status) {
  auto run = std::make_shared<std::filesystem::path>();
  CLI::App* command = app.add_subcommand(
      "diagnose",
      "Says who held up a run that stood still or failed, from its flight records: the last 2,000 collectives of each "
      "rank, in RUN_DIR/flight. They are written when a run fails, after parallel.timeout seconds without progress, "
      "and "
      "by a rank that gets SIGQUIT.\n\n"
      "  meshtrain diagnose runs/quickstart");
  command->add_option("run", *run, "The run directory")->required();
  command->callback([run, &status] { status = diagnose(*run); });
}

}  // namespace meshtrain
