#pragma once

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// Puts the messages between ranks into the rows of a schedule that has none. All actions and messages have one linear
/// order, and each row has its own in this order; so the first of them that is not done can always run, even if each
/// rank sends and receives one message after another and a send waits for its receiver. The natural order, each message
/// beside the action that makes or uses it, deadlocks there.
void place_messages(PipelineSchedule& schedule);

}  // namespace meshtrain
