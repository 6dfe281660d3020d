#pragma once

#include <vector>

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// The seconds of a stage for one micro-batch.
struct StageSeconds {
  double forward = 1, input_gradient = 1, weight_gradient = 1;
};

/// The run of a schedule on a clock.
struct SimulatedSchedule {
  double seconds = 0;        ///< from the first action to the last
  std::vector<double> busy;  ///< seconds in which each rank computes
  std::vector<int> peak;     ///< of each rank, the most forwards whose activations are kept, over its stages

  /// Returns the share of the ranks' time in which they wait.
  double bubble() const;
};

/// Runs `schedule` with the times of each stage; a message between ranks takes `message_seconds`, in which neither
/// computes less. A forward's activations are kept until its backward or its weight gradients end.
SimulatedSchedule simulate_schedule(const PipelineSchedule& schedule, const std::vector<StageSeconds>& stages,
                                    double message_seconds = 0);

}  // namespace meshtrain
