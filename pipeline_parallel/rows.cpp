#include "pipeline_parallel/rows.h"

#include <algorithm>

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

}  // namespace

std::vector<PipelineAction> one_rank_row(int stages, int micro_batches) {
  std::vector<PipelineAction> row;
  for (int i = 0; i < micro_batches; ++i) {
    for (int stage = 0; stage < stages; ++stage) row.push_back({Kind::Forward, stage, i});
    for (int stage = stages; stage-- > 0;) row.push_back({Kind::Backward, stage, i});
  }
  return row;
}

std::vector<PipelineAction> one_forward_one_backward_row(int rank, int ranks, int micro_batches) {
  const int warm_up = std::min(ranks - 1 - rank, micro_batches);
  std::vector<PipelineAction> row;
  for (int i = 0; i < warm_up; ++i) row.push_back({Kind::Forward, rank, i});
  for (int i = 0; i < micro_batches; ++i) {
    if (i + warm_up < micro_batches) row.push_back({Kind::Forward, rank, i + warm_up});
    row.push_back({Kind::Backward, rank, i});
  }
  return row;
}

// Megatron-LM's order (megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving):
// the i-th forward of a rank is of its stage (i / ranks) mod stages_per_rank, the i-th backward of the same from
// behind.
std::vector<PipelineAction> interleaved_row(int rank, int ranks, int stages_per_rank, int micro_batches) {
  const int total = stages_per_rank * micro_batches;
  const int warm_up = std::min((stages_per_rank - 1) * ranks + 2 * (ranks - 1 - rank), total);
  const auto micro_batch_of = [&](int i) { return i / (ranks * stages_per_rank) * ranks + i % ranks; };
  const auto forward = [&](int i) {
    return PipelineAction{Kind::Forward, i / ranks % stages_per_rank * ranks + rank, micro_batch_of(i)};
  };
  std::vector<PipelineAction> row;
  for (int i = 0; i < warm_up; ++i) row.push_back(forward(i));
  for (int i = 0; i < total; ++i) {
    if (i + warm_up < total) row.push_back(forward(i + warm_up));
    const int stage = (stages_per_rank - 1 - i / ranks % stages_per_rank) * ranks + rank;
    row.push_back({Kind::Backward, stage, micro_batch_of(i)});
  }
  return row;
}

std::vector<PipelineAction> zero_bubble_row(int rank, int ranks, int micro_batches) {
  std::vector<PipelineAction> row;
  int weights = 0;  // micro-batches whose weight gradients are done
  for (const PipelineAction& action : one_forward_one_backward_row(rank, ranks, micro_batches)) {
    if (action.kind == Kind::Forward) {
      row.push_back(action);
    } else if (action.kind == Kind::Backward) {
      row.push_back({Kind::InputGradient, rank, action.micro_batch});
      if (action.micro_batch >= rank) row.push_back({Kind::WeightGradient, rank, weights++});
    }
  }
  while (weights < micro_batches) row.push_back({Kind::WeightGradient, rank, weights++});
  return row;
}

}  // namespace meshtrain
