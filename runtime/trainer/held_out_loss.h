#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "mesh/group.h"
#include "runtime/trainer/batch.h"
#include "runtime/trainer/sequences.h"
#include "runtime/trainer/sharded_model.h"

namespace meshtrain {

/// The loss on tokens that are not trained on; the same on every rank.
struct HeldOutLoss {
  double mean = 0;
  int64_t num_counted = 0;
};

/// A model on its mesh that computes losses: a trainer's, or one without gradients. The members outlive this.
struct LossModel {
  ShardedModel& model;
  const Sequences& sequences;
  const Group& tokens;  ///< the ranks over which losses and counts are summed: dp x cp
  at::Device device;

  /// Returns the sum of the losses of the counted tokens, a scalar, as ShardedModel::loss() does.
  at::Tensor loss_sum(const MicroBatch& micro_batch) const;
};

/// Returns the mean loss over all counted tokens of `count` micro-batches on each dp rank; `next` returns those of this
/// rank. The mean is exactly the sum of token losses over dp x cp divided by their number. Records and changes nothing.
/// Every rank of the mesh must call it. At least one label must count, or the mean is not a number; Evaluation refuses
/// files without one. `ends`, unless empty, is called before each micro-batch, and returns the same on every rank; when
/// it returns true there is no loss.
std::optional<HeldOutLoss> held_out_loss(const LossModel& of, int64_t count, const std::function<MicroBatch()>& next,
                                         const std::function<bool()>& ends = {});

}  // namespace meshtrain
