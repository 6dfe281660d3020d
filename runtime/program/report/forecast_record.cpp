#include "runtime/program/report/forecast_record.h"

#include <cstdio>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "runtime/program/report/step_time.h"
#include "runtime/program/report/value_text.h"

namespace meshtrain {
namespace {

using nlohmann::json;

std::optional<double> optional_number_in(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::map<std::string, double> numbers_in(const json& object, const char* key) {
  std::map<std::string, double> numbers;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return numbers;
  for (const auto& [name, value] : found->items()) {
    if (value.is_number()) numbers[name] = value.get<double>();
  }
  return numbers;
}

std::string text_or_dash(const std::optional<double>& value, ValueUnit unit) {
  return value ? text_of(*value, unit) : "-";
}

/// Returns the relative error of the forecast: "+3.4 %" when it is more than was measured.
std::string difference(const ForecastRecord::Pair& pair) {
  if (!pair.planned || !pair.measured || *pair.measured <= 0) return "";
  char text[32];
  std::snprintf(text, sizeof text, "%+.1f %%", 100 * (*pair.planned / *pair.measured - 1));
  return text;
}

/// Returns the sum of the means of `keys`; none without keys.
std::optional<double> mean_of(const std::vector<std::string>& keys, const MetricsReader& metrics) {
  if (keys.empty()) return {};
  double sum = 0;
  for (const std::string& key : keys) sum += metrics[key].has_values() ? metrics[key].total().mean() : 0;
  return sum;
}

ForecastLine line_of(const std::string& label, const ForecastRecord::Pair& pair, ValueUnit unit) {
  return {label, text_or_dash(pair.planned, unit), text_or_dash(pair.measured, unit), difference(pair)};
}

}  // namespace

ForecastRecord parse_forecast(const std::string& file, const std::string& text) {
  const json object = parse_json_object(file, text);
  const json planned = object.value("planned", json::object()), measured = object.value("measured", json::object());
  if (!planned.is_object() || !measured.is_object()) throw InputError(file + " is not the forecast of a run");
  ForecastRecord step;
  step.rank = static_cast<int64_t>(optional_number_in(object, "rank").value_or(0));
  step.memory = {optional_number_in(planned, "memory_bytes"), optional_number_in(measured, "memory_bytes")};
  step.sent = {optional_number_in(planned, "sent_bytes"), optional_number_in(measured, "sent_bytes")};
  step.seconds = {optional_number_in(planned, "seconds"), optional_number_in(measured, "seconds")};
  step.memory_by_part = numbers_in(planned, "memory_by_part");
  step.seconds_by_part = numbers_in(planned, "seconds_by_part");
  step.exposed = numbers_in(planned, "exposed_seconds");
  return step;
}

std::vector<ForecastLine> compare(const ForecastRecord& step, const MetricsReader& metrics) {
  std::vector<ForecastLine> lines = {line_of("memory at the peak of a step", step.memory, ValueUnit::Bytes)};
  for (const auto& [part, bytes] : step.memory_by_part) {
    if (bytes > 0) lines.push_back(line_of("  " + part, {bytes, {}}, ValueUnit::Bytes));
  }
  lines.push_back(line_of("sent in a step", step.sent, ValueUnit::Bytes));
  lines.push_back(line_of("time of a step", step.seconds, ValueUnit::Seconds));
  for (const auto& [part, seconds] : step.seconds_by_part) {
    ForecastRecord::Pair pair{seconds, {}};
    if (part == "bubble") pair.measured = mean_of(bubble_keys(metrics), metrics);
    lines.push_back(line_of("  " + part, pair, ValueUnit::Seconds));
  }
  for (const auto& [group, seconds] : step.exposed) {
    const Series& waits = metrics["seconds.collectives." + group + ".exposed"];
    ForecastRecord::Pair pair{seconds, {}};
    if (waits.has_values()) pair.measured = waits.total().mean();
    lines.push_back(line_of("  waits for " + group, pair, ValueUnit::Seconds));
  }
  return lines;
}

}  // namespace meshtrain
