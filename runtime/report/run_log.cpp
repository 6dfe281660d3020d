#include "runtime/report/run_log.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <optional>

namespace meshtrain {
namespace {

constexpr size_t kTimeLength = 23;  // of "2026-03-01 12:00:05.250"
constexpr size_t kLongestText = 500;

/// Takes `words` off the front of `text`. Returns false, and changes nothing, when it does not begin with them.
bool take(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

/// Takes a whole number off the front of `text`.
bool take(std::string_view& text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string_view up_to(std::string_view text, std::string_view end) {
  return text.substr(0, text.find(end));
}

std::string kept(std::string_view text) {
  return std::string(text.substr(0, kLongestText));
}

/// Returns the seconds east of Greenwich of a text that begins with "+01:00"; std::nullopt for another one.
std::optional<int> zone_of(std::string_view text) {
  constexpr size_t kLength = 6;
  int hours = 0, minutes = 0;
  const std::string zone(text.substr(0, kLength));
  if (zone.size() < kLength || (zone[0] != '+' && zone[0] != '-')) return std::nullopt;
  if (std::sscanf(zone.c_str() + 1, "%2d:%2d", &hours, &minutes) != 2) return std::nullopt;
  if (hours < 0 || hours > 14 || minutes < 0 || minutes > 59) return std::nullopt;
  return (zone[0] == '-' ? -60 : 60) * (60 * hours + minutes);
}

}  // namespace

double seconds_of(std::string_view text_of_time) {
  if (text_of_time.size() < kTimeLength) return 0;
  std::tm time{};
  double seconds = 0;
  const std::string text(text_of_time.substr(0, kTimeLength));
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d %2d:%2d:%6lf", &time.tm_year, &time.tm_mon, &time.tm_mday, &time.tm_hour,
                  &time.tm_min, &seconds) != 6) {
    return 0;
  }
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  time.tm_isdst = -1;
  const std::tm asked = time;
  const std::optional<int> zone = zone_of(text_of_time.substr(kTimeLength));
  const std::time_t whole = zone ? timegm(&time) - *zone : std::mktime(&time);
  const bool is_date = time.tm_year == asked.tm_year && time.tm_mon == asked.tm_mon && time.tm_mday == asked.tm_mday;
  return whole <= 0 || !is_date || !(seconds >= 0 && seconds < 62) ? 0 : static_cast<double>(whole) + seconds;
}

void RunLog::add(std::string_view line) {
  ++num_lines_;
  const double time = seconds_of(line);
  if (time > 0) {
    const size_t level = line.find(": ", kTimeLength);
    if (level == std::string_view::npos) return;
    const bool is_error = line.substr(0, level).ends_with(" error");
    const bool is_warning = line.substr(0, level).ends_with(" warning");
    line.remove_prefix(level + 2);
    if (is_warning && !line.starts_with("warning: ")) {  // logs of earlier versions say it twice
      read("warning: " + std::string(line), time);
      return;
    }
    if (is_error) {
      if (warnings_.size() < kMostKept) warnings_.push_back(kept(line));
      return;
    }
  }
  // Lines before a start names its model still seem to be of the one before: only what a running start says counts.
  if (!read(line, time) || starts_.empty() || time == 0) return;
  RunStart& start = starts_.back();
  if (start.begin == 0) start.begin = time;
  start.end = std::max(start.end, time);
}

void RunLog::begin_start(std::string_view text) {
  if (starts_.size() >= kMostKept) starts_.erase(starts_.begin() + 1);
  if (!starts_.empty() && starts_.back().how == RunStart::End::Open) starts_.back().how = RunStart::End::Interrupted;
  RunStart& start = starts_.emplace_back();
  const std::string_view model = text.substr(text.find(": ") + 2);
  start.model = kept(up_to(model, ", mesh "));
  const std::string_view mesh = text.substr(text.find(", mesh ") + 7);
  start.mesh = kept(up_to(mesh, ", s"));  // "sequence parallel on"
}

bool RunLog::read(std::string_view text, double time) {
  const bool may_be_change = lists_changes_;
  lists_changes_ = false;
  int64_t step = 0;
  if (text.find(" parameters") != std::string_view::npos && text.find(", mesh ") != std::string_view::npos &&
      text.find(": ") < text.find(" parameters")) {
    begin_start(text);
    return true;
  }
  if (take(text, "warning: ")) {
    if (warnings_.size() < kMostKept && std::find(warnings_.begin(), warnings_.end(), text) == warnings_.end()) {
      warnings_.push_back(kept(text));
    }
    return false;
  }
  if (take(text, "checkpoint of step ") && take(text, step) && take(text, " written in ")) {
    if (checkpoints_.size() >= kMostKept) checkpoints_.erase(checkpoints_.begin());
    checkpoints_.push_back({step, time, std::strtod(std::string(text.substr(0, 32)).c_str(), nullptr)});
  } else if (starts_.empty()) {
    return false;
  } else if (take(text, "resumed after step ") && take(text, step)) {
    starts_.back().resumed_after = step;
    lists_changes_ = true;
  } else if (may_be_change && take(text, "  ")) {
    if (starts_.back().changes.size() < kMostKept) starts_.back().changes.push_back(kept(text));
    lists_changes_ = true;
  } else if (take(text, "stopped on request after step ") && take(text, step)) {
    starts_.back().last_step = std::max(starts_.back().last_step, step);
    starts_.back().how = RunStart::End::Stopped;
  } else if (take(text, "the checkpoint has all steps of train.steps")) {
    starts_.back().last_step = starts_.back().num_steps = starts_.back().resumed_after;
    starts_.back().how = RunStart::End::Done;
  } else if (take(text, "step ")) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    int64_t num_steps = 0;
    if (!take(text, step) || !take(text, "/") || !take(text, num_steps)) return false;
    starts_.back().last_step = step;
    starts_.back().num_steps = num_steps;
    if (step == num_steps) starts_.back().how = RunStart::End::Done;
  } else {
    return false;
  }
  return true;
}

}  // namespace meshtrain
