#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "runtime/training/trainer/model_part.h"

namespace meshtrain {

/// An entry of a step's schedule: the forward or the backward of one part for one micro-batch.
struct Action {
  enum class Kind { Forward, Backward };
  Kind kind;
  size_t part;
  size_t micro_batch;
  bool reduces = false;  ///< the part's last backward of the step; gradients are reduced after it

  bool operator==(const Action&) const = default;
};

/// Returns the schedule of a rank that has all parts: for each micro-batch the forward of every part, then the backward
/// of every part in reverse order. With one part: F0 B0 F1 B1 ...
std::vector<Action> one_after_another(size_t num_parts, size_t num_micro_batches);

/// Runs a schedule. A part takes the output of the part before, detached, and passes the gradient of this input back to
/// that part. `start`: the gradient of the loss sums, a scalar. Returns the sum of the loss sums, an fp64 scalar on the
/// device of `start`. Call it between Fsdp::begin_step() and the use of gradients.
at::Tensor run_schedule(const std::vector<Action>& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start);

}  // namespace meshtrain
