#pragma once

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// Throws std::logic_error, with rank and action, unless
/// - each stage has all forwards and backwards once, in the order of the micro-batches: each backward after its
///   forward, weight gradients after input gradients;
/// - each message stands behind the action that makes it and before the one that uses it, and both ends of each link
///   have the same messages in the same order;
/// - the rows end when each rank runs one action after another and a message waits for both of its ends.
void check_schedule(const PipelineSchedule& schedule);

}  // namespace meshtrain
