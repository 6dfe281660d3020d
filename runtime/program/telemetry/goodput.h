#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/program/telemetry/metrics.h"

namespace meshtrain {

/// RUN_DIR/goodput.jsonl: where the time of a run went, a line for each start, JSON objects {"start", "end": seconds
/// since 1970, "ranks", "mesh", "from_step", "to_step", "ended": "done" "stopped" "failed" "killed", or "" while it
/// goes on, "seconds": {PART: seconds}}. The parts of a start add up to its end less its start. One rank writes it.
///
/// The lines of earlier starts are written once, durably; the line of this start is written over, in place and padded
/// with blanks, at most once a second. A start that is killed ends with the last second that it recorded, or later with
/// the last of its steps that the next start makes again.
/// Where the file cannot be written, one warning says so and the run goes on.
class GoodputFile {
 public:
  /// Begins a start, which began when this process did, and continues `file`. Starts that have not ended were killed.
  /// `cut`: the steps after `last_step` that earlier starts have made and this one makes again: their time becomes
  /// "lost".
  GoodputFile(std::filesystem::path file, int64_t ranks, std::string mesh, int64_t last_step,
              const std::vector<CutStep>& cut);
  /// Ends the start as "failed" unless it has ended.
  ~GoodputFile();
  GoodputFile(const GoodputFile&) = delete;
  GoodputFile& operator=(const GoodputFile&) = delete;

  /// Accounts for the time since the last call: `parts` have their seconds, as far as there are so many, and `rest` has
  /// what they leave.
  void account(const std::string& rest, const std::map<std::string, double>& parts = {});
  /// Accounts for a step and the evaluation after it.
  void account(const StepMetrics& metrics);
  /// Ends the start, durably: "done", "stopped" or "failed".
  void end(const std::string& how);
  /// Writes what is accounted for and makes it durable.
  void sync();

 private:
  using Clock = std::chrono::steady_clock;

  std::string line() const;
  /// Writes the lines of earlier starts and opens the file.
  void open();
  void write();
  [[noreturn]] void fail() const;
  void warn(const std::exception& error);

  std::filesystem::path file_;
  std::vector<std::string> earlier_;  // lines of earlier starts
  int descriptor_ = -1;
  off_t offset_ = 0;   // of the line of this start
  size_t length_ = 0;  // of that line as it was written last
  Clock::time_point begun_, accounted_, written_;
  double start_ = 0;  // seconds since 1970
  int64_t ranks_;
  std::string mesh_;
  int64_t from_step_, to_step_;
  std::string ended_;
  std::map<std::string, double> seconds_;
  bool is_warned_ = false;
};

/// Returns how long this process has existed, in seconds; 0 where the system does not say.
double process_age();

}  // namespace meshtrain
