#include "runtime/program/telemetry/step_pace.h"

#include <algorithm>
#include <vector>

namespace meshtrain {

void StepPace::add(double seconds) {
  last_.push_back(seconds);
  if (last_.size() > kSteps) last_.pop_front();
}

double StepPace::seconds() const {
  if (last_.empty()) return 0;
  std::vector<double> sorted(last_.begin(), last_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);  // of two the shorter
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace meshtrain
