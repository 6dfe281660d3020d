#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

/// An action of a rank in a step, for one micro-batch of one stage. A stage is a part of the model; stages are numbered
/// in the order of the forward.
struct PipelineAction {
  enum class Kind {
    Forward,
    Backward,           ///< InputGradient and WeightGradient together
    InputGradient,      ///< the backward without the gradients of linear layers' weights
    WeightGradient,     ///< the gradients that InputGradient leaves out
    SendActivation,     ///< sends the stage's output to the next stage
    ReceiveActivation,  ///< receives the stage's input
    SendGradient,       ///< sends the gradient of the stage's input to the previous stage
    ReceiveGradient,    ///< receives the gradient of the stage's output
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
  OneForwardOneBackward,  ///< 1F1B (Narayanan et al., 2104.04473, figure 3); a lone rank may have any number of stages
  Interleaved,            ///< 1F1B over several stages per rank (same paper, section 2.2)
  ZeroBubble,  ///< ZB-H1 (Qi et al., 2401.10241, section 2.3): peak activations of 1F1B, a third of its bubble
};

/// The actions of all ranks of a pipeline in a step: one row per rank, in the order of execution. Stage s is on rank s
/// mod ranks.
struct PipelineSchedule {
  int ranks = 1;
  int stages = 1;
  int micro_batches = 1;
  std::vector<std::vector<PipelineAction>> rows;  ///< by rank

  int rank_of(int stage) const { return stage % ranks; }
};

/// Returns the schedule of `kind` with its messages, checked by check_schedule(). Not collective. Throws
/// std::invalid_argument, with the numbers, when a number is below 1, when several ranks have several stages each and
/// `kind` is not Interleaved, or when the micro-batches of an interleaved schedule are not a multiple of its ranks.
PipelineSchedule make_schedule(ScheduleKind kind, int ranks, int stages_per_rank, int micro_batches);

}  // namespace meshtrain
