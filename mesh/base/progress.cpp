#include "mesh/base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/base/log.h"
#include "mesh/base/quiet_thread.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Returns the seconds until the first line, and between lines; 0: each Progress has one line, at its end.
double interval() {
  constexpr double kUsual = 10, kLeast = 0.1, kMost = 86'400;
  const char* const asked = std::getenv("MESHTRAIN_PROGRESS");
  if (asked == nullptr || *asked == '\0') return kUsual;
  char* end = nullptr;
  const double seconds = std::strtod(asked, &end);
  if (*end != '\0' || !(seconds >= 0)) return kUsual;
  return seconds == 0 ? 0 : std::clamp(seconds, kLeast, kMost);
}

std::string amount(int64_t count, const std::string& unit) {
  return unit == "bytes" ? size_text(count) : with_separators(count) + " " + unit;
}

}  // namespace

/// The lines of this process, and the thread that prints them.
class ProgressLines {
 public:
  static ProgressLines& get() {
    static auto* const lines = new ProgressLines;  // outlives a thread that still prints at exit
    return *lines;
  }

  void add(Progress* progress) {
    const std::lock_guard lock(mutex_);
    if (muted_) return;
    current_.push_back(progress);
    if (current_.size() > 1 || every_ == 0) return;
    next_ = progress->begin_ + std::chrono::duration_cast<Clock::duration>(Seconds(every_));
    thread_ = quiet_thread([this](const std::stop_token& stop) { run(stop); });
  }

  void remove(const Progress* progress) {
    std::jthread ended;  // is joined without the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(current_, progress);
    if (found == current_.end()) return;
    const bool is_due = every_ == 0 || (current_.size() > 1 && Clock::now() >= next_);
    if (is_due && progress == current_.back()) print();
    current_.erase(found);
    if (std::exchange(shown_, false) && terminal_) std::fputs("\x1b[K", stderr);
    if (!current_.empty() || !thread_.joinable()) return;
    ended = std::move(thread_);
    ended.request_stop();
  }

  void mute() {
    const std::lock_guard lock(mutex_);
    muted_ = true;
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (Clock::now() >= next_) print();
      const Clock::time_point until = next_;
      wake_.wait_until(lock, stop, until, [] { return false; });
    }
  }

  void print() {
    const Clock::time_point now = Clock::now();
    if (log_level() == LogLevel::Info) {
      const Progress& progress = *current_.back();
      const std::string line = progress.line(Seconds(now - progress.begin_).count());
      // On a terminal the cursor returns to the beginning of the line, so that other lines overwrite it.
      std::fprintf(stderr, terminal_ ? "%s\x1b[K\r" : "%s\n", line.c_str());
      shown_ = true;
    }
    const double so_far = Seconds(now - current_.front()->begin_).count();
    const double pause = terminal_ ? std::min(every_, 1.0) : std::max(every_, so_far / 20);
    next_ = now + std::chrono::duration_cast<Clock::duration>(Seconds(pause));
  }

  const double every_ = interval();
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::mutex mutex_;  // of all below
  std::condition_variable_any wake_;
  std::vector<Progress*> current_;  // the outermost first
  Clock::time_point next_;          // when a line is due
  bool shown_ = false, muted_ = false;
  std::jthread thread_;
};

Progress::Progress(std::string what, int64_t total, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total) {
  ProgressLines::get().add(this);
}

Progress::~Progress() {
  ProgressLines::get().remove(this);
}

void Progress::note(std::string text) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
}

std::string Progress::line(double seconds) const {
  constexpr double kLeastRate = 10;  // below it the time that is left says more
  const int64_t done = done_, total = total_;
  const double rate = seconds > 0 ? static_cast<double>(done - kept_) / seconds : 0;
  std::string text = what_ + ": ";
  if (total > 0) {
    text += (unit_ == "bytes" ? size_text(done) : with_separators(done)) + " of " + amount(total, unit_);
  } else if (done > 0) {
    text += amount(done, unit_);
  }
  if (done > kept_ && rate >= kLeastRate) text += ", " + amount(std::llround(rate), unit_) + "/s";
  if (total > done && done > kept_) {
    text += ", " + duration(static_cast<double>(total - done) / rate) + " left";
  } else {
    text += (text.ends_with(": ") ? "" : ", ") + duration(seconds) + " so far";
  }
  const std::lock_guard lock(mutex_);
  return note_.empty() ? text : text + ", " + note_;
}

void Progress::mute() {
  ProgressLines::get().mute();
}

}  // namespace meshtrain
