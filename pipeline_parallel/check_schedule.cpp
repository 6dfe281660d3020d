#include "pipeline_parallel/check_schedule.h"

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

[[noreturn]] void refuse(int rank, const std::string& problem) {
  throw std::logic_error("schedule of pipeline rank " + std::to_string(rank) + ": " + problem);
}

/// Returns the other end of a message; std::nullopt for an action that computes.
std::optional<PipelineAction> other_end(const PipelineAction& action) {
  const auto [kind, stage, i] = action;
  switch (kind) {
    case Kind::SendActivation:
      return PipelineAction{Kind::ReceiveActivation, stage + 1, i};
    case Kind::ReceiveActivation:
      return PipelineAction{Kind::SendActivation, stage - 1, i};
    case Kind::SendGradient:
      return PipelineAction{Kind::ReceiveGradient, stage - 1, i};
    case Kind::ReceiveGradient:
      return PipelineAction{Kind::SendGradient, stage + 1, i};
    default:
      return {};
  }
}

/// Follows one row, action by action.
class RowCheck {
 public:
  RowCheck(const PipelineSchedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  void take(const PipelineAction& action) {
    const auto [kind, stage, i] = action;
    if (stage < 0 || stage >= schedule_.stages || schedule_.rank_of(stage) != rank_) {
      refuse(rank_, "it has the " + describe(action) + ", which belongs to another rank");
    }
    if (!done_.insert(action).second) refuse(rank_, "it has the " + describe(action) + " twice");
    if (i > 0 && !done_.contains({kind, stage, i - 1})) {
      refuse(rank_, "the " + describe(action) + " comes before that of micro-batch " + std::to_string(i - 1));
    }
    for (const PipelineAction& needed : needs(action)) {
      if (!done_.contains(needed)) refuse(rank_, "the " + describe(action) + " comes before the " + describe(needed));
    }
  }

  void end() const {
    for (int stage = rank_; stage < schedule_.stages; stage += schedule_.ranks) {
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        const bool splits = backward_of(stage, i) == Kind::InputGradient;
        for (const Kind kind : {Kind::Forward, splits ? Kind::WeightGradient : Kind::Backward}) {
          if (!has({kind, stage, i})) refuse(rank_, "it lacks the " + describe({kind, stage, i}));
        }
      }
    }
  }

 private:
  bool is_elsewhere(int stage) const { return schedule_.rank_of(stage) != rank_; }
  bool has(const PipelineAction& action) const { return done_.contains(action); }
  /// Returns the action with which the stage makes the gradient of its input.
  Kind backward_of(int stage, int i) const {
    return has({Kind::InputGradient, stage, i}) ? Kind::InputGradient : Kind::Backward;
  }

  /// Returns the actions of this row that must stand before `action`.
  std::vector<PipelineAction> needs(const PipelineAction& action) const {
    const auto [kind, stage, i] = action;
    switch (kind) {
      case Kind::Forward:
        if (stage == 0) return {};
        if (is_elsewhere(stage - 1)) return {{Kind::ReceiveActivation, stage, i}};
        return {{Kind::Forward, stage - 1, i}};
      case Kind::Backward:
      case Kind::InputGradient:
        if (stage + 1 == schedule_.stages) return {{Kind::Forward, stage, i}};
        if (is_elsewhere(stage + 1)) return {{Kind::Forward, stage, i}, {Kind::ReceiveGradient, stage, i}};
        return {{Kind::Forward, stage, i}, {backward_of(stage + 1, i), stage + 1, i}};
      case Kind::WeightGradient:
        return {{Kind::InputGradient, stage, i}};
      case Kind::SendActivation:
        return {{Kind::Forward, stage, i}};
      case Kind::SendGradient:
        return {{backward_of(stage, i), stage, i}};
      case Kind::ReceiveActivation:
      case Kind::ReceiveGradient:
        break;
    }
    return {};
  }

  const PipelineSchedule& schedule_;
  int rank_;
  std::set<PipelineAction> done_;
};

/// Checks that the messages from one rank to another have one order on both.
void check_links(const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, std::vector<PipelineAction>> sent, received;  // by both ranks; as sends
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const PipelineAction& action : schedule.rows[static_cast<size_t>(rank)]) {
      const std::optional<PipelineAction> other = other_end(action);
      if (!other) continue;
      const int peer = schedule.rank_of(other->stage);
      if (action.kind == Kind::SendActivation || action.kind == Kind::SendGradient) {
        sent[{rank, peer}].push_back(action);
      } else {
        received[{peer, rank}].push_back(*other);
      }
    }
  }
  for (const auto& [ranks, messages] : sent) {
    if (received[ranks] != messages) {
      refuse(ranks.first,
             "its messages to rank " + std::to_string(ranks.second) + " do not match those that it expects");
    }
  }
  for (const auto& [ranks, messages] : received) {
    if (!messages.empty() && !sent.contains(ranks)) {
      refuse(ranks.second, "it expects messages that rank " + std::to_string(ranks.first) + " does not send");
    }
  }
}

/// Runs all rows, a message when both of its ranks have reached it.
void run_with_rendezvous(const PipelineSchedule& schedule) {
  std::vector<size_t> next(schedule.rows.size(), 0);
  const auto current = [&](int rank) -> const PipelineAction* {
    const auto& row = schedule.rows[static_cast<size_t>(rank)];
    const size_t at = next[static_cast<size_t>(rank)];
    return at < row.size() ? &row[at] : nullptr;
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      const PipelineAction* const action = current(rank);
      if (action == nullptr) continue;
      if (const std::optional<PipelineAction> other = other_end(*action)) {
        const int peer = schedule.rank_of(other->stage);
        const PipelineAction* const waiting = current(peer);
        if (waiting == nullptr || *waiting != *other) continue;
        ++next[static_cast<size_t>(peer)];
      }
      ++next[static_cast<size_t>(rank)];
      goes_on = true;
    }
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    if (const PipelineAction* const action = current(rank))
      refuse(rank, "it waits forever at the " + describe(*action));
  }
}

}  // namespace

void check_schedule(const PipelineSchedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    RowCheck check(schedule, rank);
    for (const PipelineAction& action : schedule.rows.at(static_cast<size_t>(rank))) check.take(action);
    check.end();
  }
  check_links(schedule);
  run_with_rendezvous(schedule);
}

}  // namespace meshtrain
