#include "runtime/run/prediction.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "mesh/host_map.h"
#include "mesh/size_text.h"
#include "runtime/plan/plan_text.h"

namespace meshtrain {
Prediction::Prediction(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, const Machine* machine,
                       std::function<DevicePeak()> device_peak)
    : mesh_(mesh),
      host_ranks_(mesh.size() / HostMap::of(mesh.world()).num_hosts()),
      device_peak_(std::move(device_peak)),
      step_(forecast_rank(recipe, plan, {host_ranks_, device_peak_ != nullptr}, mesh.rank(), machine)),
      sent_(std::numeric_limits<int64_t>::max()) {
  if (!device_peak_) live_before_ = HostMemory::counted().live();
}

std::string Prediction::text() const {
  std::string text = "plan for rank " + std::to_string(mesh_.rank()) + ": " + size_text(step_.memory().total()) + ", " +
                     size_text(step_.sent_bytes()) + " sent a step";
  if (step_.time) text += ", " + seconds_text(step_.time->total()) + " a step";
  return text;
}

std::string Prediction::observe(double step_seconds) {
  if (seconds_.size() == kSteps) return "";
  const int64_t sent = mesh_.traffic().total().sent_bytes;
  sent_ = std::min(sent_, sent - std::exchange(sent_before_, sent));
  if (seconds_.empty() && !device_peak_) HostMemory::counted().restart_peak();  // the first step allocates what is kept
  seconds_.push_back(step_seconds);
  if (seconds_.size() < kSteps) return "";
  std::vector<double> sorted = seconds_;
  std::ranges::sort(sorted);
  return text() + "; its first " + std::to_string(kSteps) + " steps: " + size_text(memory()) + ", " + size_text(sent_) +
         " sent a step, " + seconds_text(sorted[kSteps / 2]) + " a step";
}

int64_t Prediction::memory() const {
  if (device_peak_) return device_peak_().allocated;
  const WindowMemory& windows = WindowMemory::counted();
  return HostMemory::counted().peak() - live_before_ + windows.own() + windows.common() / host_ranks_ +
         windows.exchange();
}

}  // namespace meshtrain
