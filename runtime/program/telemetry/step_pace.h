#pragma once

#include <cstddef>
#include <deque>

namespace meshtrain {

/// The time of a step that is to be expected: the median of the last steps. A step that stood still for minutes, or the
/// first one, which warms up, counts no more than another.
class StepPace {
 public:
  void add(double seconds);
  /// Returns the median; 0 before the first step.
  double seconds() const;

 private:
  static constexpr size_t kSteps = 31;
  std::deque<double> last_;
};

}  // namespace meshtrain
