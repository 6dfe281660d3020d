#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

/// An action of a rank in a step, for one micro-batch of one stage. A stage is a part of the model; stages are numbered
/// in the order of their forward.
struct PipelineAction {
  enum class Kind {
    Forward,
    Backward,           ///< InputGradient and WeightGradient in one
    InputGradient,      ///< the backward without the gradients of linear layers' weights
    WeightGradient,     ///< the gradients that InputGradient left
    SendActivation,     ///< of the stage's output, to the next stage
    ReceiveActivation,  ///< of the stage's input
    SendGradient,       ///< of the stage's input, to the stage before
    ReceiveGradient,    ///< of the stage's output
  };
  Kind kind = Kind::Forward;
  int stage = 0;
  int micro_batch = 0;

  auto operator<=>(const PipelineAction&) const = default;
};

/// Returns "forward of micro-batch 3 in stage 1".
std::string describe(const PipelineAction& action);

/// The kinds of schedules.
enum class ScheduleKind {
  OneForwardOneBackward,  ///< 1F1B (Narayanan et al., 2104.04473, figure 3); on one rank with any number of stages
  Interleaved,            ///< 1F1B over several stages a rank (the same, section 2.2)
  ZeroBubble,             ///< ZB-H1 (Qi et al., 2401.10241, section 2.3): the peak of 1F1B, a third of its bubble
};

/// A table of the actions of all ranks of a pipeline in a step, each row in order. Stage s is on rank s mod ranks.
struct PipelineSchedule {
  int ranks = 1;
  int stages = 1;
  int micro_batches = 1;
  std::vector<std::vector<PipelineAction>> rows;  ///< by rank

  int rank_of(int stage) const { return stage % ranks; }
};

/// Returns the schedule of `kind` with its messages, checked by check_schedule(). Not collective. Throws
/// std::invalid_argument, with the numbers, for numbers below 1, for several stages on each of several ranks unless
/// interleaved, and for an interleaved schedule whose micro-batches are not a multiple of its ranks.
PipelineSchedule make_schedule(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches);

}  // namespace meshtrain
