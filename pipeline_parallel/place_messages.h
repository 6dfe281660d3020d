#pragma once

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// Adds the messages between ranks to the rows of a schedule that has none. All actions and messages are put into one
/// linear order, and each row keeps this order. The first entry that is not done can therefore always run, even if each
/// rank handles one message at a time and a send waits for its receiver. In that case the natural order, each message
/// next to the action that makes or uses it, would deadlock.
void place_messages(PipelineSchedule& schedule);

}  // namespace meshtrain
