#pragma once

#include <vector>

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// The seconds of a stage for one micro-batch.
struct StageSeconds {
  double forward = 1, input_gradient = 1, weight_gradient = 1;
};

/// The simulated step of a schedule.
struct SimulatedSchedule {
  double seconds = 0;        ///< from the first action to the last
  std::vector<double> busy;  ///< seconds that each rank computes
  std::vector<int> peak;     ///< for each rank, the most forwards of its stages whose activations are kept at once

  /// Returns the fraction of the ranks' time that they wait.
  double bubble() const;
};

/// Simulates `schedule` with the times of each stage. A message between ranks takes `message_seconds` without
/// slowing either rank. A forward's activations are kept until its backward, or its weight gradients, end.
SimulatedSchedule simulate_schedule(const PipelineSchedule& schedule, const std::vector<StageSeconds>& stages,
                                    double message_seconds = 0);

}  // namespace meshtrain
