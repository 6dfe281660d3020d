#pragma once

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// Checks a schedule. Throws std::logic_error, with rank and action, unless
/// - each stage has every forward and backward once, in the order of the micro-batches: each backward after its
///   forward, weight gradients after input gradients;
/// - each message comes after the action that produces it and before the one that uses it, and both ends of each link
///   have the same messages in the same order;
/// - all rows can run to their end if each rank runs one action after another and every message waits for both of its
///   ends.
void check_schedule(const PipelineSchedule& schedule);

}  // namespace meshtrain
