#include "runtime/program/report/step_time.h"

#include <algorithm>
#include <limits>

namespace meshtrain {
namespace {

constexpr size_t kColumns = 160;  // narrower ones show noise

/// Returns the columns of `series` for a width that is a multiple of its own. Those beyond `count` are added to the
/// last one.
std::vector<Column> with_width(const Series& series, int64_t width, size_t count) {
  std::vector<Column> columns(count);
  const auto times = static_cast<size_t>(std::max<int64_t>(width / series.width(), 1));
  for (size_t i = 0; i < series.columns().size(); ++i) {
    columns[std::min(i / times, count - 1)].add(series.columns()[i]);
  }
  return columns;
}

std::string wait_key(const std::string& group) {
  return "seconds.collectives." + group + ".exposed";
}

}  // namespace

std::vector<std::string> bubble_keys(const MetricsReader& metrics) {
  const auto has_waited = [&](const std::string& group) { return metrics[wait_key(group)].total().sum > 0; };
  if (!has_waited("pp")) return {};
  return {wait_key("pp"), wait_key(has_waited("pp ends") ? "pp ends" : "world")};
}

StepTime step_time(const MetricsReader& metrics) {
  const Series& full = metrics["step_seconds"];
  StepTime time;
  if (!full.has_values()) return time;
  std::vector<std::pair<StepPart, std::vector<const Series*>>> parts;
  const auto add_sum = [&](const std::vector<std::string>& paths, const std::string& label) {
    std::vector<const Series*> summed;
    for (const std::string& path : paths) {
      if (metrics[path].total().sum > 0) summed.push_back(&metrics[path]);
    }
    if (!summed.empty()) parts.push_back({{label, 0, {}}, std::move(summed)});
  };
  const auto add = [&](const std::string& path, const std::string& label) { add_sum({path}, label); };
  const std::vector<std::string> bubble = bubble_keys(metrics);
  add_sum(bubble, "bubble");
  for (const std::string& axis : metrics.between("seconds.collectives.", ".exposed")) {
    if (std::ranges::count(bubble, wait_key(axis)) == 0) add(wait_key(axis), "waiting for " + axis);
  }
  add("seconds.data", "data");
  add("seconds.optimizer", "optimizer");
  add("seconds.checkpoint", "checkpoint");
  const bool is_divided = !parts.empty();

  int64_t width = full.width();
  for (const auto& [part, summed] : parts) {
    for (const Series* series : summed) width = std::max(width, series->width());
  }
  // A last column that is not full joins the one before: the mean of few steps is no mean of many.
  const auto num_columns = [&] { return static_cast<size_t>(std::max<int64_t>((full.last_step() + 1) / width, 1)); };
  while (num_columns() > kColumns) width *= 2;
  const std::vector<Column> steps = with_width(full, width, num_columns());
  const auto num_steps = static_cast<double>(full.total().count);
  const auto values_of = [&](const Series& series) {
    std::vector<double> values;
    const std::vector<Column> columns = with_width(series, width, steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      values.push_back(steps[i].count == 0 ? std::numeric_limits<double>::quiet_NaN()
                                           : std::max(columns[i].sum, 0.0) / static_cast<double>(steps[i].count));
    }
    return values;
  };
  StepPart rest{is_divided ? "forward and backward" : "step", full.total().sum, values_of(full)};
  for (auto& [part, summed] : parts) {
    part.values.assign(steps.size(), 0);
    for (const Series* series : summed) {
      const std::vector<double> values = values_of(*series);
      for (size_t i = 0; i < steps.size(); ++i) part.values[i] += values[i];
      part.mean_seconds += series->total().sum / num_steps;
      rest.mean_seconds -= series->total().sum;
    }
    for (size_t i = 0; i < steps.size(); ++i) rest.values[i] = std::max(rest.values[i] - part.values[i], 0.0);
  }
  rest.mean_seconds = std::max(rest.mean_seconds, 0.0) / num_steps;
  time.parts.push_back(std::move(rest));
  for (auto& [part, summed] : parts) time.parts.push_back(std::move(part));
  const bool has_evaluation = metrics["seconds.evaluation"].has_values();
  if (const Series& evaluation = metrics[has_evaluation ? "seconds.evaluation" : "eval_seconds"];
      evaluation.total().sum > 0) {  // not in step_seconds
    time.parts.push_back({"evaluation", evaluation.total().sum / num_steps, values_of(evaluation)});
  }
  for (const StepPart& part : time.parts) time.mean_seconds += part.mean_seconds;
  time.width = static_cast<double>(width);
  return time;
}

}  // namespace meshtrain
