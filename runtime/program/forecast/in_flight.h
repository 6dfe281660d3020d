#pragma once

#include <cstdint>

#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// The micro-batches after which a pipeline's rank holds as many as it ever does.
struct InFlight {
  int64_t micro_batches = 1;
  int64_t round = 1;  ///< micro-batches that a schedule adds at once
};

/// Returns the least number of micro-batches with which rank `rank` of a pipeline of `ranks` computes beside as many
/// kept micro-batches and messages of each of its stages as in a step of `all` micro-batches; at most `all`.
InFlight micro_batches_to_peak(const PipelineChoice& pipeline, int64_t ranks, int64_t rank, int64_t all);

}  // namespace meshtrain
