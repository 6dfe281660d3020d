#pragma once

#include <ATen/core/Tensor.h>

#include "pipeline_parallel/schedule.h"
#include "runtime/training/trainer/model_part.h"

namespace meshtrain {

/// Runs the schedule of a rank that has all stages: stage s is part s. A part takes the output of the part before,
/// detached, and passes the gradient of this input back to that part. Its gradients are reduced after the backward of
/// its last micro-batch. `start`: the gradient of the loss sums, a scalar. Returns the sum of the loss sums, an fp64
/// scalar on the device of `start`. Call it between Fsdp::begin_step() and the use of gradients.
at::Tensor run_schedule(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start);

}  // namespace meshtrain
