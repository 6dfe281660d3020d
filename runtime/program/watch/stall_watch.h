#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/watch/stall.h"
#include "runtime/program/watch/stall_limits.h"

namespace meshtrain {

/// Measures the time since this rank's last progress, from look to look.
class Stillness {
 public:
  using Clock = std::chrono::steady_clock;

  /// Notes the rank's records and phase, and writes what they say into `activity`. `limited`: it trains; the longest
  /// stillness is then remembered.
  void note(int64_t num_records, const std::string& phase, bool limited, Activity& activity);
  /// Notes that the process has not run for so long: what it saw before is no stillness of its own.
  void note_halt(Clock::duration time);

 private:
  int64_t num_records_ = -1;
  std::string phase_;
  Clock::time_point moved_;
  std::chrono::milliseconds longest_{}, second_{};  // one that happened once says nothing of the others
  bool was_limited_ = false;
  Clock::duration halt_{};
  Clock::time_point halt_ended_;
};

/// Decides what is said, and when the run ends, from what is seen of its ranks.
class StallWatch {
 public:
  struct Decision {
    std::vector<std::string> lines;           ///< to print
    std::string end;                          ///< why the job has to end; empty: it goes on
    std::optional<Verdict> told = {};         ///< what a line or the end says for whom ranks wait
    std::optional<int64_t> ended_after = {};  ///< milliseconds of a stall that has ended
  };

  /// Returns true after a warning, until ranks go on.
  bool is_told() const { return is_told_; }
  /// Looks at `ranks`. A warning comes after
  ///
  ///   max(limits.warning, min(3 usual, max(limits.timeout / 2, 1.5 usual)))
  ///
  /// usual: the second longest stillness of any rank so far. For a process that does not run it is limits.warning.
  Decision look(const std::vector<RankSight>& ranks, const StallLimits& limits);

 private:
  bool is_told_ = false;
  std::chrono::steady_clock::time_point told_;
  int64_t told_after_ms_ = 0;
  std::optional<std::chrono::steady_clock::time_point> stop_asked_;
};

}  // namespace meshtrain
