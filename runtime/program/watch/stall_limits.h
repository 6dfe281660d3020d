#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace meshtrain {

/// The limits of a training run for ranks that stand still, and what is needed when one is reached.
struct StallLimits {
  std::chrono::duration<double> warning{10};   ///< after which one line names who is waited for
  std::chrono::duration<double> timeout{600};  ///< after which the run ends
  bool is_stop_asked = false;                  ///< by a signal or train.time_limit
  std::string last_checkpoint = {};            ///< "that of step 12"; empty: there is none
};

/// The limits that hold as long as this object lives. One at a time, on the main thread of each rank.
class StallGuard {
 public:
  /// Calls `limits` on other threads as long as this object lives.
  explicit StallGuard(std::function<StallLimits()> limits);
  ~StallGuard();
  StallGuard(const StallGuard&) = delete;
  StallGuard& operator=(const StallGuard&) = delete;

  /// Returns the limits that hold now, if any. Any thread.
  static std::optional<StallLimits> current();
};

}  // namespace meshtrain
