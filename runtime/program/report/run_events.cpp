#include "runtime/program/report/run_events.h"

#include <algorithm>
#include <cmath>

#include "mesh/base/error.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;
using End = RunStart::End;

constexpr size_t kLongestText = 2000;

/// Returns the value of a line, with axes in their order; null when it is damaged.
ordered_json parse(std::string_view line) try {
  refuse_deep_json("events.jsonl", line);
  const ordered_json value = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? ordered_json() : value;
} catch (const InputError&) {
  return nullptr;
}

std::string text_in(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>().substr(0, kLongestText) : "";
}

int64_t number_in(const ordered_json& object, const char* key, int64_t otherwise = 0) {
  const auto found = object.find(key);
  constexpr int64_t kMost = 1'000'000'000'000'000;
  if (found == object.end() || !found->is_number_integer()) return otherwise;
  return std::clamp(found->get<int64_t>(), -kMost, kMost);
}

double seconds_in(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::max(found->get<double>(), 0.0) : 0;
}

/// Returns "dp=2,tp=2" of {"dp": 2, "tp": 2}.
std::string mesh_in(const ordered_json& object) {
  const auto found = object.find("mesh");
  std::string text;
  if (found == object.end() || !found->is_object()) return text;
  for (const auto& [axis, size] : found->items()) {
    if (size.is_number_integer()) text += (text.empty() ? "" : ",") + axis + "=" + std::to_string(size.get<int64_t>());
  }
  return text.substr(0, kLongestText);
}

FailedRank failed_rank(const ordered_json& event) {
  return {number_in(event, "rank", -1), text_in(event, "cause"), text_in(event, "message"), number_in(event, "step")};
}

/// Returns true for a failure in a phase that comes before the event of its start.
bool is_before_start(const ordered_json& event) {
  const auto phase = event.find("phase");
  if (phase == event.end() || !phase->is_object()) return false;
  const std::string kind = text_in(*phase, "kind");
  return kind == "set_up" || kind == "resume";
}

void take_start(const ordered_json& event, RunStart& start) {
  start.mesh = mesh_in(event);
  start.resumed_after = start.last_step = std::max<int64_t>(number_in(event, "step"), 0);
  start.num_steps = std::max<int64_t>(number_in(event, "steps"), 0);
  const int64_t parameters = number_in(event, "parameters"), trained = number_in(event, "trained_parameters");
  if (parameters <= 0) return;
  start.model = with_separators(parameters) + " parameters";
  if (trained < parameters) start.model += " (" + with_separators(trained) + " of them trained)";
}

/// Returns false for an event that means nothing to a start.
bool take(const std::string& name, const ordered_json& event, RunStart& start) {
  const int64_t step = number_in(event, "step");
  if (name == "resumed") {
    const auto changes = event.find("changes");
    if (changes == event.end() || !changes->is_array()) return true;
    for (const ordered_json& change : *changes) {
      if (!change.is_string() || start.changes.size() >= RunEvents::kMostKept) continue;
      start.changes.push_back(change.get<std::string>().substr(0, kLongestText));
    }
  } else if (name == "checkpoint") {
    start.last_step = std::max(start.last_step, step);
  } else if (name == "rank_failed") {
    const FailedRank failed = failed_rank(event);
    const auto is_same = [&](const FailedRank& any) { return any.rank == failed.rank && any.cause == failed.cause; };
    const bool is_new = std::none_of(start.failures.begin(), start.failures.end(), is_same);  // hosts report it too
    if (is_new && start.failures.size() < RunEvents::kMostKept) start.failures.push_back(failed);
    start.how = End::Failed;
  } else if (name == "rank_answers") {
    std::erase_if(start.failures,
                  [&](const FailedRank& failed) { return failed.rank == number_in(event, "rank", -2); });
    if (start.failures.empty() && start.how == End::Failed) start.how = End::Open;
  } else if (name == "stalled") {
    start.stalls = {failed_rank(event)};
  } else if (name == "stall_ended") {
    start.stalls.clear();
  } else if (name == "stopped" || name == "done") {
    start.last_step = std::max(start.last_step, step);
    start.how = name == "done" ? End::Done : End::Stopped;
  } else {
    return false;
  }
  return true;
}

RunStart start_of(const LedgerStart& of_ledger) {
  RunStart start;
  start.begin = of_ledger.start;
  start.mesh = of_ledger.mesh;
  start.resumed_after = of_ledger.from_step;
  return start;
}

/// Adds what the ledger knows of a start, whose time and steps it keeps each second.
void complete(RunStart& start, const LedgerStart& of_ledger) {
  start.end = std::max(start.end, of_ledger.end);
  start.last_step = std::max(start.last_step, of_ledger.to_step);
  if (start.how != End::Open) return;
  if (of_ledger.ended == "done") start.how = End::Done;
  if (of_ledger.ended == "stopped") start.how = End::Stopped;
  if (of_ledger.ended == "failed") start.how = End::Failed;
}

}  // namespace

RunStart& RunEvents::begin_start() {
  if (starts_.size() >= kMostKept) starts_.erase(starts_.begin() + 1);
  return starts_.emplace_back();
}

void RunEvents::add(std::string_view line) {
  const ordered_json event = parse(line);
  const std::string name = event.is_object() ? text_in(event, "event") : "";
  if (name.empty()) {
    ++num_damaged_;
    return;
  }
  const double time = seconds_in(event, "time");
  if (name == "started") {
    take_start(event, begin_start());
  } else {
    // Several ranks may report one failure.
    const bool is_new =
        name == "rank_failed" && is_before_start(event) && (starts_.empty() || starts_.back().has_begun);
    if (is_new) begin_start().has_begun = false;
    if (starts_.empty() || !take(name, event, starts_.back())) return;
  }
  if (name == "checkpoint") {
    if (checkpoints_.size() >= kMostKept) checkpoints_.erase(checkpoints_.begin());
    checkpoints_.push_back({number_in(event, "step"), seconds_in(event, "seconds")});
  }
  RunStart& start = starts_.back();
  if (start.begin == 0) start.begin = time;
  start.end = std::max(start.end, time);
}

std::vector<RunStart> starts_of(const RunEvents& events, const Ledger& ledger) {
  std::vector<RunStart> starts = events.starts();
  for (const LedgerStart& of_ledger : ledger.starts()) {
    // The ledger's start is that of the process; the event follows before the next one's.
    const auto next = std::find_if(ledger.starts().begin(), ledger.starts().end(),
                                   [&](const LedgerStart& any) { return any.start > of_ledger.start; });
    const double limit = next == ledger.starts().end() ? HUGE_VAL : next->start;
    const auto found = std::find_if(starts.begin(), starts.end(), [&](const RunStart& start) {
      return start.has_begun && start.begin >= of_ledger.start && start.begin < limit;
    });
    RunStart& start = found != starts.end() ? *found : starts.emplace_back(start_of(of_ledger));
    complete(start, of_ledger);
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const RunStart& a, const RunStart& b) { return a.begin < b.begin; });
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i].how == End::Open) starts[i].how = End::Interrupted;
  }
  return starts;
}

std::vector<MeshSegment> mesh_segments(const std::vector<RunStart>& starts) {
  std::vector<MeshSegment> segments;
  for (const RunStart& start : starts) {
    if (start.mesh.empty()) continue;
    while (!segments.empty() && segments.back().after >= start.resumed_after) segments.pop_back();
    if (segments.empty() || segments.back().mesh != start.mesh) segments.push_back({start.mesh, start.resumed_after});
  }
  return segments;
}

std::string meshes_of(const std::vector<RunStart>& starts) {
  const std::vector<MeshSegment> segments = mesh_segments(starts);
  if (segments.size() < 2) return segments.empty() ? "" : segments.front().mesh;
  std::string text;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t first = segments[i].after + 1;
    text += (i == 0 ? "" : ", then ") + segments[i].mesh;
    if (i + 1 == segments.size()) {
      text += " (from step " + with_separators(first) + ")";
    } else if (segments[i + 1].after == first) {
      text += " (step " + with_separators(first) + ")";
    } else {
      text += " (steps " + with_separators(first) + " to " + with_separators(segments[i + 1].after) + ")";
    }
  }
  return text;
}

}  // namespace meshtrain
