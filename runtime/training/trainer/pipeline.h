#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fsdp/flat_buffer.h"
#include "pipeline_parallel/schedule.h"
#include "runtime/training/trainer/pipeline_links.h"

namespace meshtrain {

/// A buffer of parameters that several stages use. Each of these stages has a copy, and the gradients of all copies are
/// summed.
struct SharedBuffer {
  const FlatBuffer* buffer;
  Group holders;  ///< the ranks that hold a copy of this rank's shard
};

/// A callback that observes the steps of a rank. It receives each computing action when it begins, and std::nullopt
/// when all actions have ended.
using OnAction = std::function<void(const std::optional<PipelineAction>&)>;

/// A pipeline, as one rank sees it. The parts of the model on this rank are its stages.
struct Pipeline {
  const PipelineLinks* links = nullptr;  ///< null: this rank has all stages. Must outlive the trainer
  ScheduleKind schedule = ScheduleKind::OneForwardOneBackward;
  int first_trained = 0;  ///< the first stage with a trained parameter: stages before it have no backward
  std::vector<SharedBuffer> shared = {};
  OnAction on_action = {};

  int num_ranks() const { return links == nullptr ? 1 : links->size(); }
  /// Returns true on the rank of the last stage, which computes the loss.
  bool has_loss() const { return links == nullptr || links->rank() + 1 == links->size(); }
};

}  // namespace meshtrain
