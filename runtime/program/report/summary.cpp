#include "runtime/program/report/summary.h"

#include <fmt/format.h>

#include "runtime/program/report/facts.h"
#include "runtime/program/report/step_time.h"
#include "runtime/program/report/value_text.h"

namespace meshtrain {
namespace {

/// Replaces what a terminal would take for a command.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string line(const std::string& label, const std::string& value, const std::string& note) {
  return printable(fmt::format("  {:<24} {}{}", label, value, note.empty() ? "" : "  (" + note + ")")) + "\n";
}

std::string with_share(double seconds, double of) {
  return fmt::format("{:>9}  {:>7}", text_of(seconds, ValueUnit::Seconds), text_of(seconds / of, ValueUnit::Percent));
}

std::string parts_text(const RunRecord& run) {
  std::string text;
  const StepTime time = step_time(run.metrics);
  if (time.parts.size() > 1) {
    text += "  a step's time, mean\n";
    for (const StepPart& part : time.parts) {
      text += line("  " + part.label, with_share(part.mean_seconds, time.mean_seconds), "");
    }
  }
  double sum = 0;
  for (const auto& [part, seconds] : run.ledger.parts()) sum += seconds;
  if (sum <= 0) return text;
  text += "  goodput, over all starts\n";
  for (const auto& [part, seconds] : run.ledger.parts())
    text += line("  " + part_name(part), with_share(seconds, sum), "");
  text +=
      line("  from first to last", fmt::format("{:>9}", text_of(run.ledger.wall_seconds(), ValueUnit::Seconds)), "");
  return text;
}

std::string forecast_text(const RunRecord& run) {
  if (!run.forecast) return "";
  std::string text = fmt::format("  {:<30} {:>11} {:>11}\n", fmt::format("plan of rank {}", run.forecast->rank),
                                 "planned", "first steps");
  for (const ForecastLine& each : compare(*run.forecast, run.metrics)) {
    std::string line = printable(
        fmt::format("    {:<28} {:>11} {:>11}   {}", each.label, each.planned, each.measured, each.difference));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string starts_text(const RunRecord& run) {
  std::string text;
  for (const RunStart& start : run.starts) {
    if (start.resumed_after > 0 || !start.changes.empty()) {
      text += line("resumed", "after step " + std::to_string(start.resumed_after), time_text(start.begin));
    }
    for (const std::string& change : start.changes) text += line("", "  " + change, "");
    if (!start.failures.empty()) text += line("failed", start.failures.front().message, time_text(start.end));
  }
  return text;
}

}  // namespace

std::string summary_text(const std::vector<const RunRecord*>& runs) {
  std::string text;
  for (const RunRecord* run : runs) {
    if (!text.empty()) text += "\n";
    const std::string meshes = run->meshes_text();
    text += printable(run->folder.string() + (meshes.empty() ? "" : ": " + meshes)) + "\n";
    for (const Fact& fact : facts_of(*run)) text += line(fact.label, fact.value, fact.note);
    text += starts_text(*run) + parts_text(*run) + forecast_text(*run);
    for (const std::string& problem : run->problems) text += line("not read", problem, "");
  }
  if (runs.size() == 1) return text;
  text += "\nkeys of the recipes that differ\n";
  for (const RecipeDifference& difference : recipe_differences(runs)) {
    text += line(difference.key, fmt::format("{}", fmt::join(difference.values, " | ")), "");
  }
  return text;
}

}  // namespace meshtrain
