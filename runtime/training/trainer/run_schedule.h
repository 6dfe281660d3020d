#pragma once

#include <ATen/core/Tensor.h>

#include "pipeline_parallel/schedule.h"
#include "runtime/training/trainer/model_part.h"
#include "runtime/training/trainer/pipeline.h"

namespace meshtrain {

/// Runs this rank's row of a schedule. The forward of a stage takes the output of the previous stage, detached; its
/// backward passes the gradient of this input back to that stage. If that stage is on another rank, both are sent over
/// a link. The gradients of a stage are reduced after the backward of its last micro-batch. If weight gradients are
/// separate actions, they are reduced with the last of these; Fsdp must then have memory for the gradients of a
/// complete step. `parts`: the rank's stages in their order. `batch`: the same on all ranks of the pipeline. `start`: a
/// scalar, the gradient of the loss sums. Returns the sum of the loss sums, an fp64 scalar on the device of `start`; 0
/// on ranks without the last stage. Every rank of the schedule must call it, between Fsdp::begin_step() and the use of
/// gradients.
at::Tensor run_schedule(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start, const Pipeline& pipeline = {});

/// Runs the forward of all stages for a micro-batch, without recording for autograd. Returns the loss sum; 0 on ranks
/// without the last stage. `links`: as in Pipeline. Every rank of the pipeline must call it.
at::Tensor run_forward(const ModelParts& parts, const MicroBatch& micro_batch, const PipelineLinks* links = nullptr);

}  // namespace meshtrain
