// The sections that are curves.

#include <algorithm>
#include <cmath>

#include "mesh/base/size_text.h"
#include "runtime/program/report/chart.h"
#include "runtime/program/report/html.h"
#include "runtime/program/report/mesh_grid.h"
#include "runtime/program/report/sections.h"
#include "runtime/program/report/step_time.h"

namespace meshtrain {
namespace {

StepRange steps_of(const Runs& runs) {
  int64_t first = 0, last = 0;
  bool any = false;
  for (const RunRecord* run : runs) {
    for (const auto& [path, series] : run->metrics.series()) {
      if (!series.has_values()) continue;
      first = any ? std::min(first, series.first_step()) : series.first_step();
      last = std::max(last, series.last_step());
      any = true;
    }
  }
  return {static_cast<double>(first), static_cast<double>(std::max(last, first + 1))};
}

int color_of(size_t run) {
  return static_cast<int>(run % kNumColors);
}

/// Where a single run was resumed. Those of several would hide each other.
std::vector<Mark> marks_of(const Runs& runs) {
  std::vector<Mark> marks;
  if (runs.size() > 1) return marks;
  const std::vector<RunStart>& starts = runs.front()->starts;
  const auto last_step = static_cast<double>(runs.front()->metrics.last_step());
  for (size_t i = 1; i < starts.size(); ++i) {
    if (!starts[i].has_begun) continue;
    const auto after = static_cast<double>(starts[i].resumed_after);
    if (after > last_step) continue;
    marks.push_back(
        {after + 0.5, "resumed after step " + with_separators(starts[i].resumed_after) +
                          (starts[i - 1].last_step > starts[i].resumed_after
                               ? "; the start before had come to step " + with_separators(starts[i - 1].last_step)
                               : "")});
  }
  return marks;
}

/// A series that a chart has of every run.
struct Path {
  std::string path;
  std::string label;
  bool has_points = false;
};

std::vector<Curve> curves_of(const Runs& runs, const std::vector<Path>& paths) {
  std::vector<Curve> curves;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t p = 0; p < paths.size(); ++p) {
      const bool alone = runs.size() == 1;
      std::string label = alone ? paths[p].label : runs[i]->name;
      if (!alone && p > 0) label += ", " + paths[p].label;
      curves.push_back({std::move(label), alone ? static_cast<int>(p) : color_of(i), &runs[i]->metrics[paths[p].path],
                        paths[p].has_points || (!alone && p > 0)});
    }
  }
  return curves;
}

std::string section(const std::string& title, const std::string& content) {
  return content.empty() ? "" : "<section>\n<h2>" + escaped(title) + "</h2>\n" + content + "</section>\n";
}

std::string in_a_grid(const std::string& charts) {
  return charts.empty() ? "" : "<div class=\"charts\">\n" + charts + "</div>\n";
}

std::string share_cell(double share, int color) {
  char width[32];
  std::snprintf(width, sizeof width, "%.1f", 100 * std::clamp(share, 0.0, 1.0));
  return "<td class=\"number\">" + text_of(share, ValueUnit::Percent) +
         "</td><td class=\"shares\"><span class=\"share c" + std::to_string(color) + "\" style=\"width:" + width +
         "%\"></span></td>";
}

std::string number_cell(double value, ValueUnit unit) {
  return "<td class=\"number\">" + escaped(text_of(value, unit)) + "</td>";
}

/// Returns the mean over the steps that have a value; NaN without any.
double mean_of(const Series& series) {
  return series.total().mean();
}

std::string time_of_run(const RunRecord& run, const std::vector<Mark>& marks, const StepRange& steps) {
  const StepTime time = step_time(run.metrics);
  std::vector<StackedCurve> curves;
  std::string table =
      "<table class=\"fitted\"><tr><th>part</th><th class=\"number\">mean</th><th class=\"number\">share"
      "</th><th></th></tr>\n";
  for (const StepPart& part : time.parts) {
    curves.push_back({part.label, part.color, part.values});
    table += "<tr><td>" + escaped(part.label) + "</td>" + number_cell(part.mean_seconds, ValueUnit::Seconds) +
             share_cell(part.mean_seconds / time.mean_seconds, part.color) + "</tr>\n";
  }
  const std::string chart =
      draw_stacked("Time of a step", "by what it goes to", ValueUnit::Seconds, curves, time.width, marks, steps);
  return chart.empty()
             ? ""
             : "<div class=\"charts\">\n" + chart + "<div class=\"scroll\">" + table + "</table></div></div>\n";
}

std::string communication_of_run(const RunRecord& run, const std::vector<Mark>& marks, const StepRange& steps) {
  const MetricsReader& metrics = run.metrics;
  std::vector<std::string> axes = metrics.between("seconds.collectives.", ".total");
  for (const std::string& axis : metrics.between("bytes.", "")) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  }
  if (axes.empty()) return "";
  std::string table =
      "<table class=\"fitted\"><tr><th>axis</th><th class=\"number\">bytes a step</th>"
      "<th class=\"number\">in collectives</th><th class=\"number\">of it exposed</th>"
      "<th class=\"number\">hidden</th><th></th></tr>\n";
  Chart bytes{"Bytes of a step", "by axis", ValueUnit::Bytes, {}, marks, /*begins_at_zero=*/true};
  Chart exposed{"Seconds waited for collectives", "exposed, of a step, by axis", ValueUnit::Seconds, {}, marks, true};
  for (const std::string& axis : axes) {
    const std::string seconds = "seconds.collectives." + axis;
    const int color = axis_color(axis);
    const double total = mean_of(metrics[seconds + ".total"]), waited = mean_of(metrics[seconds + ".exposed"]);
    table += "<tr><td>" + escaped(axis) + "</td>" + number_cell(mean_of(metrics["bytes." + axis]), ValueUnit::Bytes) +
             number_cell(total, ValueUnit::Seconds) + number_cell(waited, ValueUnit::Seconds) +
             (total > 0 ? share_cell(1 - waited / total, color) : "<td class=\"number\">-</td><td></td>") + "</tr>\n";
    bytes.curves.push_back({axis, color, &metrics["bytes." + axis]});
    exposed.curves.push_back({axis, color, &metrics[seconds + ".exposed"]});
  }
  return "<div class=\"scroll\">" + table + "</table></div>\n" + in_a_grid(draw(exposed, steps) + draw(bytes, steps));
}

}  // namespace

std::string run_name(const Runs& runs, size_t i) {
  return color_key(color_of(i)) + escaped(runs[i]->name);
}

std::string run_heading(const Runs& runs, size_t i) {
  return runs.size() == 1 ? "" : "<h3>" + run_name(runs, i) + "</h3>\n";
}

std::string training_section(const Runs& runs) {
  const StepRange steps = steps_of(runs);
  const std::vector<Mark> marks = marks_of(runs);
  const Chart charts[] = {
      {"Loss", "mean of a counted token, in nats", ValueUnit::None,
       curves_of(runs, {{"loss", "training"}, {"eval_loss", "held out", true}}), marks},
      {"Gradient norm", "before clipping", ValueUnit::None, curves_of(runs, {{"grad_norm", "gradient norm"}}), marks,
       false, true},
      {"Learning rate", "", ValueUnit::None, curves_of(runs, {{"learning_rate", "learning rate"}}), marks, true},
      {"Loss scale", "of fp16_mixed", ValueUnit::None, curves_of(runs, {{"loss_scale", "loss scale"}}), marks, false,
       true}};
  std::string drawn;
  for (const Chart& chart : charts) drawn += draw(chart, steps);
  return section("Training", in_a_grid(drawn));
}

std::string speed_section(const Runs& runs) {
  const StepRange steps = steps_of(runs);
  const std::vector<Mark> marks = marks_of(runs);
  // FLOP/s say what MFU says, where the device is known.
  const bool has_mfu =
      std::any_of(runs.begin(), runs.end(), [](const RunRecord* run) { return run->metrics["mfu"].has_values(); });
  const Chart charts[] = {{"Tokens per second", "of all ranks", ValueUnit::PerSecond,
                           curves_of(runs, {{"tokens_per_second", "tokens/s"}}), marks, true},
                          {"MFU", "model FLOP/s of what the device can do", ValueUnit::Percent,
                           curves_of(runs, {{"mfu", "MFU"}}), marks, true},
                          {"Model FLOP/s", "a rank", ValueUnit::Flops,
                           curves_of(has_mfu ? Runs() : runs, {{"flops_per_rank", "FLOP/s"}}), marks, true},
                          {"Peak memory", "of the rank that has most", ValueUnit::Bytes,
                           curves_of(runs, {{"memory.host_peak_bytes", "host"},
                                            {"memory.device_allocated_peak_bytes", "GPU, allocated"},
                                            {"memory.device_reserved_peak_bytes", "GPU, reserved"}}),
                           marks, true}};
  std::string drawn;
  for (const Chart& chart : charts) drawn += draw(chart, steps);
  return section("Speed and memory", in_a_grid(drawn));
}

std::string time_section(const Runs& runs) {
  const StepRange steps = steps_of(runs);
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string drawn = time_of_run(*runs[i], marks_of(runs), steps);
    if (!drawn.empty()) html += run_heading(runs, i) + drawn;
  }
  return section("Where a step's time goes", html);
}

std::string communication_section(const Runs& runs) {
  const StepRange steps = steps_of(runs);
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string drawn = communication_of_run(*runs[i], marks_of(runs), steps);
    if (!drawn.empty()) html += run_heading(runs, i) + drawn;
  }
  return section("Communication by axis", html);
}

std::string mesh_section(const Runs& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string drawn = draw_mesh_grid(runs[i]->mesh, runs[i]->hosts);
    if (drawn.empty()) continue;
    html += run_heading(runs, i) + "<p>" + escaped(runs[i]->mesh_text()) + ": " +
            escaped(counted(runs[i]->num_ranks(), "rank")) + "; a cell is a rank, its color the host</p>\n" + drawn;
  }
  return section("Mesh", html);
}

}  // namespace meshtrain
