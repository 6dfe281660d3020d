// The sections that are tables and text.

#include <algorithm>

#include "mesh/base/size_text.h"
#include "runtime/program/report/chart.h"
#include "runtime/program/report/facts.h"
#include "runtime/program/report/html.h"
#include "runtime/program/report/sections.h"
#include "runtime/program/report/table.h"

namespace meshtrain {
namespace {

std::string titled(const std::string& title, const std::string& content) {
  return content.empty() ? "" : "<section>\n<h2>" + escaped(title) + "</h2>\n" + content + "</section>\n";
}

std::string how_it_ended(const RunStart& start) {
  switch (start.how) {
    case RunStart::End::Done:
      return "done";
    case RunStart::End::Stopped:
      return "stopped on request";
    case RunStart::End::Interrupted:
      return "interrupted";
    case RunStart::End::Failed:
      return "failed" + reason_of(start);
    case RunStart::End::Open:
      return "no end yet";
  }
  return "";
}

std::string starts_of(const RunRecord& run) {
  Table table({"start", "from", "to", "last known", "mesh", "ended"});
  for (const RunStart& start : run.starts) {
    const std::string end = how_it_ended(start);
    table.add({time_text(start.begin),
               !start.has_begun          ? "-"
               : start.resumed_after > 0 ? "step " + with_separators(start.resumed_after)
                                         : "the beginning",
               start.last_step > 0 ? "step " + with_separators(start.last_step) : "-", time_text(start.end), start.mesh,
               end});
  }
  const std::string html = table.html(4);
  return html.empty() ? "" : "<h3>Starts and interruptions</h3>\n" + html;
}

std::string checkpoints_of(const RunRecord& run) {
  Table table({"checkpoint", "complete", "size", "written in", "files"});
  for (const ListedCheckpoint& checkpoint : run.checkpoints) {
    std::string seconds = "-";
    for (const CheckpointTime& written : run.events.checkpoints()) {
      if (written.step == checkpoint.step) seconds = text_of(written.seconds, ValueUnit::Seconds);
    }
    table.add({"step " + with_separators(checkpoint.step) + (checkpoint.abandoned ? ", abandoned" : ""),
               time_text(checkpoint.time), text_of(static_cast<double>(checkpoint.bytes), ValueUnit::Bytes), seconds,
               with_separators(checkpoint.num_files)});
  }
  const std::string html = table.html();
  return html.empty() ? "" : "<h3>Checkpoints</h3>\n" + html;
}

std::string skipped_of(const RunRecord& run) {
  Table table({"step", "first gradient that was not finite"});
  for (const SkippedStep& skipped : run.metrics.skipped()) {
    table.add({with_separators(skipped.step), skipped.parameter.empty() ? "none by itself" : skipped.parameter});
  }
  const std::string html = table.html(1);
  return html.empty() ? "" : "<h3>Skipped steps: " + with_separators(run.metrics.num_skipped()) + "</h3>\n" + html;
}

std::string warnings_in(const RunRecord& run) {
  std::string html;
  for (const std::string& warning : run.warnings.lines()) html += "<li>" + escaped(warning) + "</li>\n";
  return html.empty() ? "" : "<h3>Warnings</h3>\n<ul>\n" + html + "</ul>\n";
}

std::string flight_of(const RunRecord& run) {
  if (run.flight.empty()) return "";
  return "<h3>Flight records</h3>\n<p>" + counted(run.flight.size(), "file") +
         " in flight/: <code>meshtrain diagnose " + escaped(run.folder.string()) + "</code> compares them.</p>\n";
}

/// The color of a part of the ledger, that of the same part of a step where there is one.
int part_color(const std::string& part) {
  static const std::vector<std::pair<std::string, int>> kColors = {
      {"training", 0}, {"exposed_communication", 1}, {"data", 4}, {"checkpoint", 6}, {"evaluation", 2}, {"start_up", 5},
      {"lost", 3}};
  for (const auto& [name, color] : kColors) {
    if (name == part) return color;
  }
  return 7;
}

std::string goodput_of(const RunRecord& run) {
  const auto parts = run.ledger.parts();
  double sum = 0;
  for (const auto& [part, seconds] : parts) sum += seconds;
  if (sum <= 0) return "";
  std::string bar = "<div class=\"bar\">", rows;
  for (const auto& [part, seconds] : parts) {
    char share[32];
    std::snprintf(share, sizeof share, "%.3f", 100 * seconds / sum);
    const int color = part_color(part);
    const std::string name = escaped(part_name(part));
    bar += "<i class=\"c" + std::to_string(color) + "\" style=\"width:" + share + "%\" title=\"" + name + "\"></i>";
    rows += "<tr><td>" + color_key(color) + name + "</td><td class=\"number\">" + text_of(seconds, ValueUnit::Seconds) +
            "</td><td class=\"number\">" + text_of(seconds / sum, ValueUnit::Percent) + "</td></tr>\n";
  }
  const double wall = run.ledger.wall_seconds();
  return bar +
         "</div>\n<div class=\"scroll\"><table><tr><th>part</th><th class=\"number\">time</th><th class=\"number\">"
         "share</th></tr>\n" +
         rows + "<tr><td>all parts</td><td class=\"number\">" + text_of(sum, ValueUnit::Seconds) +
         "</td><td></td></tr>\n<tr><td>from the first start to the last end</td><td class=\"number\">" +
         text_of(wall, ValueUnit::Seconds) + "</td><td></td></tr>\n</table></div>\n";
}

std::string changes_of(const RunRecord& run) {
  Table table({"resumed after", "at", "change"});
  for (const RunStart& start : run.starts) {
    for (const std::string& change : start.changes) {
      table.add({"step " + with_separators(start.resumed_after), time_text(start.begin), change});
    }
  }
  return table.html(2);
}

std::string whole_recipe(const RunRecord& run) {
  if (run.recipe.empty()) return "";
  std::string rows;
  for (const auto& [key, value] : run.recipe) {
    rows += "<tr><td><code>" + escaped(key) + "</code></td><td class=\"wide\"><code>" + escaped(value) +
            "</code></td></tr>\n";
  }
  return "<details><summary>The recipe as run: " + counted(run.recipe.size(), "key") +
         "</summary>\n<div class=\"scroll\"><table>" + rows + "</table></div></details>\n";
}

}  // namespace

std::string history_section(const Runs& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = *runs[i];
    const std::string history =
        starts_of(run) + skipped_of(run) + checkpoints_of(run) + warnings_in(run) + flight_of(run);
    if (!history.empty()) html += run_heading(runs, i) + history;
  }
  return titled("History", html);
}

std::string goodput_section(const Runs& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string goodput = goodput_of(*runs[i]);
    if (!goodput.empty()) html += run_heading(runs, i) + goodput;
  }
  return titled("Goodput: where the time of the run went", html);
}

std::string plan_section(const Runs& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i]->planned) continue;
    Table table({"of rank " + std::to_string(runs[i]->planned->rank), "planned", "its first steps", "planned is"});
    for (const PlanLine& line : compare(*runs[i]->planned, runs[i]->metrics)) {
      table.add({line.label, line.planned, line.measured, line.difference});
    }
    html += run_heading(runs, i) + table.html();
  }
  return titled("Plan and truth", html);
}

std::string recipe_section(const Runs& runs) {
  std::string html;
  if (runs.size() > 1) {
    std::vector<std::string> names = {"key"};
    for (const RunRecord* run : runs) names.push_back(run->name);
    Table table(names);
    for (RecipeDifference& difference : recipe_differences(runs)) {
      std::vector<std::string> cells = {difference.key};
      cells.insert(cells.end(), difference.values.begin(), difference.values.end());
      table.add(std::move(cells));
    }
    const std::string differences = table.html(1);
    html += "<h3>Differences</h3>\n" +
            (differences.empty() ? "<p class=\"note\">The recipes are the same.</p>\n" : differences);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string changes = changes_of(*runs[i]), recipe = whole_recipe(*runs[i]);
    if (changes.empty() && recipe.empty()) continue;
    html += run_heading(runs, i) + (changes.empty() ? "" : "<h3>Changes over resumes</h3>\n" + changes) + recipe;
  }
  return titled(runs.size() > 1 ? "Recipes" : "Recipe", html);
}

std::string problems_section(const Runs& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i]->problems.empty()) continue;
    html += run_heading(runs, i) + "<ul>\n";
    for (const std::string& problem : runs[i]->problems) html += "<li class=\"alarm\">" + escaped(problem) + "</li>\n";
    html += "</ul>\n";
  }
  return titled("What could not be read", html);
}

}  // namespace meshtrain
