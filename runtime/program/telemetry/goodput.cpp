#include "runtime/program/telemetry/goodput.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"

namespace meshtrain {
namespace {

using nlohmann::ordered_json;

constexpr std::chrono::seconds kWritePeriod{1};

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

double number_in(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

/// Returns the parts of the time of a step and its evaluation, without that of training.
std::map<std::string, double> parts_of(const CutStep& step) {
  return {{"data", step.data},
          {"exposed_communication", step.exposed},
          {"checkpoint", step.checkpoint},
          {"evaluation", step.evaluation}};
}

/// Moves the time of a step that is made again from the parts of its start to "lost". A start that was killed may have
/// recorded a part of that time, or nothing: what it has not recorded is added, up to the end of the step.
void lose(ordered_json& start, const CutStep& step) {
  ordered_json& seconds = start["seconds"];
  const double end = number_in(start, "end");
  const double unrecorded = start.value("ended", ordered_json()) == "killed" ? std::max(step.time - end, 0.0) : 0;
  const double recorded = std::max(step.step_seconds + step.evaluation - unrecorded, 0.0);
  const double share = recorded > 0 ? recorded / (step.step_seconds + step.evaluation) : 0;
  if (unrecorded > 0) {
    start["end"] = step.time;
    start["to_step"] = step.step;
  }
  double lost = unrecorded, others = 0;
  const auto move = [&](const std::string& part, double wanted) {
    const double moved = std::clamp(share * wanted, 0.0, number_in(seconds, part.c_str()));
    if (moved <= 0) return;
    seconds[part] = number_in(seconds, part.c_str()) - moved;
    lost += moved;
  };
  for (const auto& [part, time] : parts_of(step)) {
    if (part != "evaluation") others += time;
    move(part, time);
  }
  move("training", step.step_seconds - others);
  seconds["lost"] = number_in(seconds, "lost") + lost;
}

bool is_start(const ordered_json& object) {
  return object.is_object() && object.contains("seconds") && object["seconds"].is_object();
}

/// Closes starts that have not ended, and moves the time of `cut` to "lost" in the starts that took it.
void revise(std::vector<std::string>& lines, const std::vector<CutStep>& cut) {
  std::vector<ordered_json> starts;
  for (const std::string& line : lines) {
    starts.push_back(ordered_json::parse(line, nullptr, /*allow_exceptions=*/false));
    ordered_json& start = starts.back();
    if (is_start(start) && start.value("ended", ordered_json()) == "") start["ended"] = "killed";
  }
  for (const CutStep& step : cut) {
    const auto made = std::find_if(starts.rbegin(), starts.rend(), [&](const ordered_json& start) {
      return is_start(start) && step.time > 0 && number_in(start, "start") <= step.time;
    });
    if (made != starts.rend()) lose(*made, step);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (is_start(starts[i])) lines[i] = starts[i].dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
}

}  // namespace

double process_age() {
  std::ifstream in("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');  // the name may have blanks
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kStartTime = 22, kFirst = 3;  // numbers of fields in proc(5)
  std::string field;
  for (int i = kFirst; i <= kStartTime; ++i) fields >> field;
  timespec now{};
  const long ticks = sysconf(_SC_CLK_TCK);
  if (clock_gettime(CLOCK_BOOTTIME, &now) != 0 || ticks <= 0 || field.empty()) return 0;
  const double begun = std::strtod(field.c_str(), nullptr) / static_cast<double>(ticks);
  const double age = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - begun;
  return std::max(age, 0.0);
}

GoodputFile::GoodputFile(std::filesystem::path file, int64_t ranks, std::string mesh, int64_t last_step,
                         const std::vector<CutStep>& cut)
    : file_(std::move(file)),
      earlier_(lines_of(file_)),
      ranks_(ranks),
      mesh_(std::move(mesh)),
      from_step_(last_step),
      to_step_(last_step) {
  revise(earlier_, cut);
  const double age = process_age();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  start_ = std::chrono::duration<double>(now).count() - age;
  begun_ = accounted_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(age));
  account("start_up");
  write();
}

GoodputFile::~GoodputFile() {
  if (ended_.empty()) end("failed");
  if (descriptor_ >= 0) close(descriptor_);
}

void GoodputFile::account(const std::string& rest, const std::map<std::string, double>& parts) {
  const Clock::time_point now = Clock::now();
  double left = std::chrono::duration<double>(now - std::exchange(accounted_, now)).count();
  for (const auto& [part, wanted] : parts) {
    const double seconds = std::clamp(wanted, 0.0, left);
    if (seconds > 0) seconds_[part] += seconds;
    left -= seconds;
  }
  seconds_[rest] += left;
  if (now - written_ >= kWritePeriod) write();
}

void GoodputFile::account(const StepMetrics& metrics) {
  CutStep step;
  step.data = metrics.seconds.data;
  for (const auto& [group, of] : metrics.collectives) step.exposed += of.exposed.value_or(0);
  step.checkpoint = metrics.seconds.checkpoint;
  if (metrics.evaluation) step.evaluation = metrics.evaluation->seconds;
  to_step_ = metrics.step;
  account("training", parts_of(step));
}

void GoodputFile::end(const std::string& how) {
  account(how == "failed" ? "lost" : "ending");
  ended_ = how;
  sync();
}

std::string GoodputFile::line() const {
  double sum = 0;
  for (const auto& [part, seconds] : seconds_) sum += seconds;
  const ordered_json start = {{"start", start_}, {"end", start_ + sum},     {"ranks", ranks_},
                              {"mesh", mesh_},   {"from_step", from_step_}, {"to_step", to_step_},
                              {"ended", ended_}, {"seconds", seconds_}};
  return start.dump();
}

void GoodputFile::open() {
  std::string text;
  for (const std::string& earlier : earlier_) text += earlier + '\n';
  write_atomically(file_, text);
  sync_folder(file_.parent_path());
  descriptor_ = ::open(file_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail();
  offset_ = static_cast<off_t>(text.size());
}

void GoodputFile::write() {
  written_ = Clock::now();
  try {
    if (descriptor_ < 0) open();
    std::string text = line();
    length_ = std::max(length_, text.size());
    text.resize(length_, ' ');
    text += '\n';
    errno = ENOSPC;  // for a write that takes a part
    if (::pwrite(descriptor_, text.data(), text.size(), offset_) != static_cast<ssize_t>(text.size())) fail();
  } catch (const std::exception& error) {
    warn(error);
  }
}

void GoodputFile::sync() {
  if (descriptor_ < 0) return;
  write();
  try {
    if (::fdatasync(descriptor_) != 0 && !is_unsupported(errno)) fail();
  } catch (const std::exception& error) {
    warn(error);
  }
}

void GoodputFile::fail() const {
  throw std::runtime_error("cannot write " + file_.string() + ": " + std::strerror(errno));
}

void GoodputFile::warn(const std::exception& error) {
  if (std::exchange(is_warned_, true)) return;
  log_warning(error.what() + std::string(": the times of this run's parts are no longer written"));
}

}  // namespace meshtrain
