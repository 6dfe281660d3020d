#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device/copy_stream.h"
#include "mesh/device/memory.h"
#include "mesh/device_mesh.h"
#include "mesh/flight_recorder.h"
#include "runtime/program/telemetry/metrics.h"

namespace meshtrain {

/// What one rank has measured in a step. A number that does not exist is NaN.
struct RankStep {
  double loss = 0;  ///< mean over the rank's own counted labels
  double optimizer_seconds = 0;
  double step_seconds = 0;
  double data_seconds = 0;
  double checkpoint_seconds = 0;
  double host_peak = 0, device_allocated = 0, device_reserved = 0;  ///< bytes
  double copied_to_device = 0, copied_to_host = 0;                  ///< bytes of what is offloaded
  double copies_exposed = 0;                                        ///< seconds
  struct Collectives {
    double total = 0, exposed = 0, sent_bytes = 0;
  };
  std::vector<Collectives> collectives;  ///< in the order of StepMeter::groups()

  double exposed() const;  ///< of all groups
};

/// The measurement of a rank's steps: where the time went, from one end of a step to the next. Collectives within an
/// evaluation or a checkpoint belong to these and not to their group.
class StepMeter {
 public:
  /// `device_peak`: null on a CPU. `copy_costs`: returns those of copies between GPU and host so far; null when
  /// nothing is offloaded. Every
  /// rank of `mesh` must construct it, when the groups of the mesh have been made.
  StepMeter(const DeviceMesh& mesh, std::function<DevicePeak()> device_peak,
            std::function<CopyCosts()> copy_costs = {});

  /// The time of a part of the step, from its construction to its destruction.
  class Part {
   public:
    Part(StepMeter& meter, double& seconds) : meter_(meter), seconds_(seconds) {}
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    StepMeter& meter_;
    double& seconds_;
    std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    GroupCosts before_ = FlightRecorder::own().costs();
  };
  [[nodiscard]] Part data() { return Part(*this, data_); }
  [[nodiscard]] Part checkpoint() { return Part(*this, checkpoint_); }

  /// Begins to measure a step, and forgets what was measured before.
  void begin();
  /// Ends a step and begins the next one. Returns what was measured, without the loss and the optimizer's time.
  RankStep end();
  /// Returns the steps of all ranks, in their order. Every rank must call it: one all-gather of a few numbers.
  std::vector<RankStep> gather(const RankStep& own) const;

  /// Returns the names of the groups that collectives are counted by, the same on every rank.
  const std::vector<std::string>& groups() const { return groups_; }

 private:
  const DeviceMesh& mesh_;
  std::function<DevicePeak()> device_peak_;
  std::function<CopyCosts()> copy_costs_;
  std::vector<std::string> groups_;
  std::chrono::steady_clock::time_point begun_;
  GroupCosts before_;  // costs at the beginning, and what parts have had since then
  CopyCosts copies_before_;
  double data_ = 0, checkpoint_ = 0;
};

/// Writes what all ranks have measured into `metrics`: means and maxima over ranks.
void summarize(const std::vector<RankStep>& ranks, const std::vector<std::string>& groups, StepMetrics& metrics);

}  // namespace meshtrain
