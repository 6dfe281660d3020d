#include "runtime/program/report/ledger.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr size_t kMostParts = 32;
constexpr std::array<const char*, 6> kOrder = {"training", "exposed_communication", "data", "checkpoint", "evaluation",
                                               "start_up"};

double number_in(const json& object, const char* key) {
  const auto found = object.find(key);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(value) && value >= 0 ? value : 0;
}

int64_t count_in(const json& object, const char* key) {
  constexpr double kMost = 1e15;
  return static_cast<int64_t>(std::min(number_in(object, key), kMost));
}

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>().substr(0, 200) : "";
}

}  // namespace

void Ledger::add(std::string_view line) try {
  const json object = parse_json_object("goodput.jsonl", line);
  LedgerStart start{
      number_in(object, "start"),    number_in(object, "end"),    count_in(object, "ranks"), text_in(object, "mesh"),
      count_in(object, "from_step"), count_in(object, "to_step"), text_in(object, "ended"),  {}};
  if (const auto seconds = object.find("seconds"); seconds != object.end() && seconds->is_object()) {
    for (const auto& [part, value] : seconds->items()) {
      if (value.is_number() && start.seconds.size() < kMostParts) {
        start.seconds[part.substr(0, 64)] = number_in(*seconds, part.c_str());
      }
    }
  }
  if (!starts_.empty() && start.start > 0 && starts_.back().start == start.start) {
    starts_.back() = std::move(start);
  } else if (starts_.size() < kMostStarts) {
    starts_.push_back(std::move(start));
  }
} catch (const InputError&) {
  ++num_damaged_;
}

double Ledger::wall_seconds() const {
  double first = 0, last = 0;
  for (const LedgerStart& start : starts_) {
    if (start.start > 0 && (first == 0 || start.start < first)) first = start.start;
    last = std::max({last, start.start, start.end});
  }
  return last - first;
}

std::vector<std::pair<std::string, double>> Ledger::parts() const {
  std::map<std::string, double> sums;
  double end = 0, idle = 0;
  for (const LedgerStart& start : starts_) {
    for (const auto& [part, seconds] : start.seconds) sums[part] += seconds;
    if (end > 0 && start.start > end) idle += start.start - end;
    end = start.end;
  }
  if (idle > 0) sums["idle"] += idle;
  std::vector<std::pair<std::string, double>> parts;
  const auto move = [&](const std::string& part) {
    const auto found = sums.find(part);
    if (found == sums.end()) return;
    if (found->second > 0) parts.emplace_back(*found);
    sums.erase(found);
  };
  for (const char* part : kOrder) move(part);
  const double lost = std::exchange(sums["lost"], 0), waited = std::exchange(sums["idle"], 0);
  while (!sums.empty()) move(std::string(sums.begin()->first));
  if (lost > 0) parts.emplace_back("lost", lost);
  if (waited > 0) parts.emplace_back("idle", waited);
  return parts;
}

}  // namespace meshtrain
