#include "runtime/program/telemetry/events.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "mesh/base/files/late_write.h"
#include "mesh/base/version.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;
using Coordinate = std::vector<std::pair<std::string, int64_t>>;

constexpr std::array kCauses = {"killed", "network", "exception", "stopped", "frozen",   "reading",
                                "saving", "absent",  "different", "order",   "transport"};

struct Target {
  std::filesystem::path file;
  std::function<Coordinate(int)> coordinate_of;
};

std::mutex target_mutex;
Target& target() {
  static auto* const target = new Target;  // outlives threads that append
  return *target;
}

Target current_target() {
  const std::lock_guard lock(target_mutex);
  return target();
}

ordered_json object_of(const Coordinate& axes) {
  ordered_json object = ordered_json::object();
  for (const auto& [axis, number] : axes) object[axis] = number;
  return object;
}

std::string append(const char* event, const ordered_json& values) {
  const std::filesystem::path file = current_target().file;
  if (file.empty()) return "";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  ordered_json line = {{"time", std::chrono::duration<double>(now).count()}, {"event", event}};
  line.update(values);
  const std::string text = line.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
  return append_late(file, text, /*makes=*/true);
}

ordered_json values_of(const RankFailure& failure) {
  ordered_json values = {{"cause", name(failure.cause)}};
  if (failure.ranks.empty()) {
    values["rank"] = nullptr;
  } else {
    const Target now = current_target();
    values["rank"] = failure.ranks.front();
    if (now.coordinate_of) values["coordinate"] = object_of(now.coordinate_of(failure.ranks.front()));
    if (failure.ranks.size() > 1) values["others"] = std::vector<int>(failure.ranks.begin() + 1, failure.ranks.end());
  }
  if (!failure.host.empty()) values["host"] = failure.host;
  if (failure.signal != 0) values["signal"] = signal_name(failure.signal);
  if (!failure.phase.empty()) values["phase"] = {{"kind", failure.phase}, {"text", failure.during}};
  if (failure.step > 0) values["step"] = failure.step;
  values["message"] = failure.message;
  return values;
}

}  // namespace

const char* name(FailureCause cause) {
  return kCauses.at(static_cast<size_t>(cause));
}

std::string signal_name(int signal) {
  const char* const name = signal > 0 ? sigabbrev_np(signal) : nullptr;
  return name != nullptr ? std::string("SIG") + name : "";
}

void keep_events_in(std::filesystem::path file, std::function<Coordinate(int)> coordinate_of) {
  const std::lock_guard lock(target_mutex);
  target() = {std::move(file), std::move(coordinate_of)};
}

std::string append_event(const StartEvent& started) {
  std::vector<std::string> hosts;
  for (const std::string& host : started.hosts) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return append("started", {{"version", version()},
                            {"name", started.name},
                            {"mesh", object_of(started.mesh)},
                            {"ranks", started.hosts.size()},
                            {"hosts", hosts},
                            {"step", started.step},
                            {"steps", started.num_steps},
                            {"parameters", started.num_parameters},
                            {"trained_parameters", started.num_trainable}});
}

std::string append_event(const ResumeEvent& resumed) {
  return append(
      "resumed",
      {{"step", resumed.step}, {"folder", resumed.folder}, {"seconds", resumed.seconds}, {"changes", resumed.changes}});
}

std::string append_event(const CompletedCheckpoint& checkpoint) {
  return append("checkpoint",
                {{"step", checkpoint.step}, {"folder", checkpoint.folder}, {"seconds", checkpoint.seconds}});
}

std::string append_failed(const RankFailure& failure) {
  return append("rank_failed", values_of(failure));
}

std::string append_stalled(const RankFailure& stall) {
  return append("stalled", values_of(stall));
}

std::string append_stall_ended(double seconds) {
  return append("stall_ended", {{"seconds", seconds}});
}

std::string append_answers(int rank) {
  return append("rank_answers", {{"rank", rank}});
}

std::string append_stopped(int64_t step, int signal) {
  ordered_json values = {{"step", step}, {"why", signal == 0 ? "time_limit" : "signal"}};
  if (signal > 0) values["signal"] = signal_name(signal);
  return append("stopped", values);
}

std::string append_done(int64_t step) {
  return append("done", {{"step", step}});
}

}  // namespace meshtrain
