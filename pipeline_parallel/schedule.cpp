#include "pipeline_parallel/schedule.h"

#include <stdexcept>

#include "mesh/base/size_text.h"
#include "pipeline_parallel/check_schedule.h"
#include "pipeline_parallel/place_messages.h"
#include "pipeline_parallel/rows.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

void check_numbers(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches) {
  const auto refuse = [](const std::string& problem) { throw std::invalid_argument("pipeline schedule: " + problem); };
  if (ranks < 1 || stages_per_rank < 1 || micro_batches < 1) {
    refuse(counted(ranks, "rank") + ", " + counted(stages_per_rank, "stage") + " a rank and " +
           std::to_string(micro_batches) + " micro-batches: each must be 1 or more");
  }
  const bool one_rank = kind == ScheduleKind::OneForwardOneBackward && ranks == 1;
  if (kind != ScheduleKind::Interleaved && !one_rank && stages_per_rank > 1) {
    refuse(counted(stages_per_rank, "stage") + " on each of " + counted(ranks, "rank") +
           " need an interleaved schedule");
  }
  if (kind == ScheduleKind::Interleaved && micro_batches % ranks != 0) {
    refuse("an interleaved schedule runs micro-batches in rounds of one per rank, but " +
           std::to_string(micro_batches) + " is not a multiple of " + counted(ranks, "rank"));
  }
}

}  // namespace

std::string describe(const PipelineAction& action) {
  const auto [kind, stage, i] = action;
  const std::string of = " of micro-batch " + std::to_string(i), in = " stage " + std::to_string(stage);
  switch (kind) {
    case Kind::Forward:
      return "forward" + of + " in" + in;
    case Kind::Backward:
      return "backward" + of + " in" + in;
    case Kind::InputGradient:
      return "input gradient" + of + " in" + in;
    case Kind::WeightGradient:
      return "weight gradients" + of + " in" + in;
    case Kind::SendActivation:
      return "sending" + of + "'s activation by" + in;
    case Kind::ReceiveActivation:
      return "receiving" + of + "'s activation by" + in;
    case Kind::SendGradient:
      return "sending" + of + "'s gradient by" + in;
    case Kind::ReceiveGradient:
      break;
  }
  return "receiving" + of + "'s gradient by" + in;
}

PipelineSchedule make_schedule(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches) {
  check_numbers(kind, ranks, stages_per_rank, micro_batches);
  PipelineSchedule schedule{ranks, ranks * stages_per_rank, micro_batches, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    switch (kind) {
      case ScheduleKind::OneForwardOneBackward:
        schedule.rows.push_back(ranks == 1 ? one_rank_row(stages_per_rank, micro_batches)
                                           : one_forward_one_backward_row(rank, ranks, micro_batches));
        break;
      case ScheduleKind::Interleaved:
        schedule.rows.push_back(interleaved_row(rank, ranks, stages_per_rank, micro_batches));
        break;
      case ScheduleKind::ZeroBubble:
        schedule.rows.push_back(zero_bubble_row(rank, ranks, micro_batches));
        break;
    }
  }
  place_messages(schedule);
  check_schedule(schedule);
  return schedule;
}

}  // namespace meshtrain
