#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "runtime/program/report/facts.h"
#include "runtime/program/report/line_follower.h"
#include "runtime/program/report/run_events.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/program/watch/flight_files.h"
#include "runtime/program/watch/stall.h"
#include "tools/meshtrain/commands.h"

namespace meshtrain {
namespace {

std::string last_of(const RankSight& rank) {
  const GroupSight& last = rank.activity.last;
  if (last.pending.number == 0) return "-";
  const std::string work = last.pending.work.text();
  return describe(last.pending) + ", number " + std::to_string(last.pending.in_group) + " of " + describe(last.label) +
         (work.empty() ? "" : ", in " + work);
}

void print(const std::vector<RankSight>& ranks) {
  for (const RankSight& rank : ranks) {
    std::printf("%s on %s\n  in    %s\n  state %s\n  last  %s\n", rank.name.c_str(), rank.host.c_str(),
                rank.phase.text.c_str(), state_of(rank).c_str(), last_of(rank).c_str());
  }
}

std::vector<RunStart> read_starts(const std::filesystem::path& run) {
  RunEvents events;
  LineFollower(RunDirectory::events_of(run)).read([] {}, [&](std::string_view line) { events.add(line); });
  return starts_of(events, Ledger());
}

/// Returns what became of the last start, as far as its events say.
std::string end_of(const RunStart& start) {
  const std::string begun = "the start of " + time_text(start.begin);
  if (start.how == RunStart::End::Done) return begun + " is complete: all steps are done";
  if (start.how == RunStart::End::Stopped)
    return begun + " was stopped on request after step " + std::to_string(start.last_step);
  return begun + " has no end in events.jsonl: it runs, or all its ranks were killed at once";
}

int diagnose(const std::filesystem::path& run) {
  if (!std::filesystem::is_directory(run))
    throw InputError(run.string() + " is not a run directory: it does not exist");
  const Progress progress("flight records of " + run.string());
  const std::vector<RunStart> starts = read_starts(run);
  const RunStart* const last = starts.empty() ? nullptr : &starts.back();
  std::optional<Flights> flights;
  try {
    flights = read_flights(run / "flight");
  } catch (const NoFlights&) {
    if (last == nullptr) throw;
  }
  const bool are_older = flights && last != nullptr && last->failures.empty() && flights->time < last->begin;
  if (flights && !are_older) print(flights->ranks);
  // The rank that reported the failure saw the others while they lived; records alone cannot tell why a rank is gone.
  std::vector<std::string> lines;
  if (last != nullptr) {
    for (const FailedRank& failed : last->failures) lines.push_back(failed.message);
  }
  if (lines.empty() && flights && !are_older) {
    const auto verdict = judge(flights->ranks);
    lines.push_back(verdict ? verdict->text : "no rank waited for a collective");
  }
  if (lines.empty() && !last->stalls.empty()) lines.push_back(last->stalls.front().message);
  if (lines.empty()) lines.push_back(end_of(*last));
  if (flights && !are_older) std::printf("\n");
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace

void add_diagnose_command(CLI::App& app, int& status) {
  auto run = std::make_shared<std::filesystem::path>();
  CLI::App* command =
      app.add_subcommand("diagnose",
                         "Says why a run failed, or which rank held it up. Prints the flight records in RUN_DIR/flight "
                         "(the last 2,000 collectives of each rank), and below them the verdict from "
                         "RUN_DIR/events.jsonl. Records are written when a run fails, after "
                         "parallel.timeout seconds without progress, and by a rank that gets SIGQUIT.\n\n"
                         "  meshtrain diagnose runs/quickstart");
  command->add_option("run", *run, "The run directory")->required();
  command->callback([run, &status] { status = diagnose(*run); });
}

}  // namespace meshtrain
