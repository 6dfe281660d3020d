#include "runtime/program/run/prediction.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "mesh/base/files/output_file.h"
#include "mesh/base/size_text.h"
#include "runtime/program/forecast/forecast_text.h"

namespace meshtrain {

Prediction::Prediction(StepForecast step, const DeviceMesh& mesh, int64_t host_ranks,
                       std::function<DevicePeak()> device_peak, std::filesystem::path file)
    : mesh_(mesh),
      host_ranks_(host_ranks),
      device_peak_(std::move(device_peak)),
      step_(std::move(step)),
      sent_(std::numeric_limits<int64_t>::max()),
      file_(std::move(file)) {
  if (!device_peak_) live_before_ = HostMemory::counted().live();
}

void Prediction::count_copy(int64_t bytes, int64_t num_steps) {
  (num_steps < kSteps ? early_copy_ : later_copy_) = bytes;
}

std::string Prediction::text() const {
  std::string copy;
  if (early_copy_ > 0) copy = ", " + size_text(early_copy_) + " of them for the copy of a checkpoint";
  if (later_copy_ > 0) copy = ", " + size_text(later_copy_) + " more from the first checkpoint on";
  return "plan for rank " + std::to_string(mesh_.rank()) + ": " + size_text(planned_memory()) + copy + rates();
}

std::string Prediction::rates() const {
  std::string text = ", " + size_text(step_.sent_bytes()) + " sent a step";
  if (const int64_t copied = step_.offload.copied(); copied > 0)
    text += ", " + size_text(copied) + " copied between host and GPU";
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
  measured_memory_ = memory();
  return "first " + std::to_string(kSteps) + " steps of rank " + std::to_string(mesh_.rank()) + ": " +
         size_text(measured_memory_) + ", " + size_text(sent_) + " sent a step, " + seconds_text(median_seconds()) +
         " a step; planned: " + size_text(planned_memory()) + rates();
}

double Prediction::median_seconds() const {
  std::vector<double> sorted = seconds_;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

void Prediction::write() const {
  std::map<std::string, int64_t> parts = memory_parts(step_.memory());
  parts["checkpoint copy"] = early_copy_;
  nlohmann::ordered_json planned = {
      {"memory_bytes", planned_memory()}, {"memory_by_part", std::move(parts)}, {"sent_bytes", step_.sent_bytes()}};
  if (const OffloadForecast& offload = step_.offload; !offload.is_empty()) planned["offload"] = offload_parts(offload);
  if (step_.time) {
    planned["seconds"] = step_.time->total();
    planned["seconds_by_part"] = time_parts(*step_.time);
    planned["exposed_seconds"] = step_.time->exposed;
  }
  nlohmann::ordered_json all = {{"rank", mesh_.rank()}, {"planned", std::move(planned)}};
  if (seconds_.size() == kSteps) {
    all["measured"] = {{"memory_bytes", measured_memory_}, {"sent_bytes", sent_}, {"seconds", median_seconds()}};
  }
  write_atomically(file_, all.dump() + "\n");
}

int64_t Prediction::memory() const {
  if (device_peak_) return device_peak_().allocated;
  const WindowMemory& windows = WindowMemory::counted();
  return HostMemory::counted().peak() - live_before_ + windows.own() + windows.common() / host_ranks_ +
         windows.exchange();
}

}  // namespace meshtrain
