#include "runtime/program/report/report_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/program/report/facts.h"
#include "runtime/program/report/step_time.h"

namespace meshtrain {
namespace {

using nlohmann::json;

/// Returns `value` rounded to five digits. JSON has null for a number that is not finite.
double shortened(double value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return std::strtod(text, nullptr);
}

/// Returns the list of make(item) for each of `items`.
template <class Items, class Make>
json list_of(const Items& items, const Make& make) {
  json list = json::array();
  for (const auto& item : items) list.push_back(make(item));
  return list;
}

/// Returns true when the page draws the series at `path`.
bool is_drawn(std::string_view path) {
  static constexpr std::string_view kBefore[] = {
      "loss", "eval_loss",      "grad_norm", "learning_rate", "tokens_per_second",
      "mfu",  "flops_per_rank", "memory.",   "bytes.",        "seconds.collectives."};
  return std::any_of(std::begin(kBefore), std::end(kBefore), [&](auto before) { return path.starts_with(before); });
}

/// Returns the columns with values, and their numbers. `gaps`: indices of columns that follow values not finite.
json series_json(const Series& series) {
  std::vector<size_t> columns, gaps;
  std::vector<double> mean, least, most;
  bool is_gap = false;
  for (size_t i = 0; i < series.columns().size(); ++i) {
    const Column& column = series.columns()[i];
    if (column.count == 0) {
      is_gap = is_gap || column.num_others > 0;
      continue;
    }
    if (std::exchange(is_gap, false)) gaps.push_back(columns.size());
    columns.push_back(i);
    mean.push_back(shortened(column.mean()));
    least.push_back(shortened(column.least));
    most.push_back(shortened(column.most));
  }
  json object = {{"width", series.width()},
                 {"average", shortened(series.total().mean())},
                 {"columns", columns},
                 {"mean", mean},
                 {"gaps", gaps}};
  if (series.width() > 1) object.update({{"least", least}, {"most", most}});
  return object;
}

/// Adds the curves of a run to `object`, and the steps of its first and last values.
void add_series(const MetricsReader& metrics, json& object) {
  int64_t first = Series::kMostSteps, last = 0;
  json drawn = json::object();
  for (const auto& [path, series] : metrics.series()) {
    if (!series.has_values()) continue;
    first = std::min(first, series.first_step());
    last = std::max(last, series.last_step());
    if (is_drawn(path)) drawn[path] = series_json(series);
  }
  object["series"] = std::move(drawn);
  object["steps"] = json::array({std::min(first, last), last});
}

json time_json(const StepTime& time) {
  const auto part_json = [&](const StepPart& part) -> json {
    return {{"label", part.label},
            {"mean", shortened(part.mean_seconds)},
            {"share", shortened(part.mean_seconds / time.mean_seconds)},
            {"values", list_of(part.values, shortened)}};
  };
  return {{"width", time.width}, {"parts", list_of(time.parts, part_json)}};
}

std::string about(const RunRecord& run) {
  std::string text = run.folder.string();
  const auto known =
      std::find_if(run.starts.rbegin(), run.starts.rend(), [](const RunStart& start) { return !start.model.empty(); });
  if (known != run.starts.rend()) text += "; " + known->model;
  if (const std::string meshes = run.meshes_text(); !meshes.empty()) text += "; " + meshes;
  return text;
}

json fact_json(const Fact& fact) {
  return json::array({fact.label, fact.value, fact.note});
}

json goodput_json(const Ledger& ledger) {
  const auto part_json = [](const auto& part) -> json {
    return {{"part", part.first}, {"name", part_name(part.first)}, {"seconds", part.second}};
  };
  return {{"parts", list_of(ledger.parts(), part_json)}, {"wall", ledger.wall_seconds()}};
}

json forecast_json(const RunRecord& run) {
  if (!run.forecast) return nullptr;
  const auto line_json = [](const ForecastLine& line) {
    return json::array({line.label, line.planned, line.measured, line.difference});
  };
  return {{"rank", run.forecast->rank}, {"lines", list_of(compare(*run.forecast, run.metrics), line_json)}};
}

json start_json(const RunStart& start) {
  return {{"begin", time_text(start.begin)}, {"has_begun", start.has_begun}, {"after", start.resumed_after},
          {"last", start.last_step},         {"end", time_text(start.end)},  {"mesh", start.mesh},
          {"ended", how_it_ended(start)},    {"changes", start.changes}};
}

json checkpoints_json(const RunRecord& run) {
  return list_of(run.checkpoints, [&](const ListedCheckpoint& checkpoint) -> json {
    json seconds = nullptr;
    for (const CheckpointTime& written : run.events.checkpoints()) {
      if (written.step == checkpoint.step) seconds = shortened(written.seconds);
    }
    return {{"step", checkpoint.step},
            {"abandoned", checkpoint.abandoned},
            {"complete", time_text(checkpoint.time)},
            {"bytes", checkpoint.bytes},
            {"seconds", seconds},
            {"files", checkpoint.num_files}};
  });
}

json skipped_json(const MetricsReader& metrics) {
  const auto step_json = [](const SkippedStep& skipped) {
    const std::string outlier = skipped.outlier.empty() ? "" : "an outlier: " + skipped.outlier;
    return json::array({skipped.step, outlier.empty() ? skipped.parameter : outlier});
  };
  return {{"count", metrics.num_skipped()}, {"steps", list_of(metrics.skipped(), step_json)}};
}

/// Returns the names of the hosts, ordered by their first ranks, and for each rank the index of its host.
json hosts_json(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  std::map<std::string, size_t> numbers;
  const json of_ranks = list_of(hosts, [&](const std::string& host) {
    const auto [number, is_new] = numbers.try_emplace(host, numbers.size());
    if (is_new) names.push_back(host);
    return number->second;
  });
  return {{"names", names}, {"of_ranks", of_ranks}};
}

json run_json(const RunRecord& run) {
  json object = {{"name", run.name},
                 {"folder", run.folder.string()},
                 {"about", about(run)},
                 {"facts", list_of(facts_of(run), fact_json)},
                 {"problems", run.problems},
                 {"time", time_json(step_time(run.metrics))},
                 {"goodput", goodput_json(run.ledger)},
                 {"plan", forecast_json(run)},
                 {"starts", list_of(run.starts, start_json)},
                 {"skipped", skipped_json(run.metrics)},
                 {"checkpoints", checkpoints_json(run)},
                 {"warnings", run.warnings.lines()},
                 {"flight_records", run.flight.size()},
                 {"mesh", run.mesh},
                 {"hosts", hosts_json(run.hosts)},
                 {"recipe", run.recipe}};
  add_series(run.metrics, object);
  return object;
}

}  // namespace

std::string report_json(const std::vector<const RunRecord*>& runs, int64_t version) {
  const auto difference_json = [](const RecipeDifference& difference) {
    json row = json::array({difference.key});
    for (const std::string& value : difference.values) row.push_back(value);
    return row;
  };
  const json report = {{"version", version},
                       {"made", time_text(static_cast<double>(std::time(nullptr)))},
                       {"runs", list_of(runs, [](const RunRecord* run) { return run_json(*run); })},
                       {"differences", list_of(recipe_differences(runs), difference_json)}};
  std::string text;
  for (const char c : report.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace meshtrain
