#pragma once

#include <vector>

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

// The rows of each kind of schedule, without messages.

/// Returns the row of a rank that has all stages: for each micro-batch the forward of every stage, then the backwards
/// in reverse order.
std::vector<PipelineAction> one_rank_row(int stages, int micro_batches);
/// Returns the row of `rank` in 1F1B: forwards until the first backward can arrive, then forwards and backwards in
/// turn.
std::vector<PipelineAction> one_forward_one_backward_row(int rank, int ranks, int micro_batches);
/// Returns the row of `rank` in interleaved 1F1B over `stages_per_rank` stages per rank, in rounds of `ranks`
/// micro-batches. `micro_batches`: a multiple of `ranks`.
std::vector<PipelineAction> interleaved_row(int rank, int ranks, int stages_per_rank, int micro_batches);
/// Returns one_forward_one_backward_row() with each weight gradient delayed by `rank` micro-batches.
std::vector<PipelineAction> zero_bubble_row(int rank, int ranks, int micro_batches);

}  // namespace meshtrain
