#include "runtime/program/watch/stall.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

using Cause = Verdict::Cause;

std::string describe_rank(const RankSight& rank) {
  return rank.name + " on " + rank.host;
}

bool is_halted(const RankSight& rank) {
  return rank.activity.is_stopped || !rank.runs;
}

/// "rank 3", "ranks 2, 3 and 7".
std::string list(const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + enumerated(numbers);
}

/// "all_reduce of [4] Float for vote, number 12 of group world".
std::string describe(const GroupSight& group, const Flight* flight, int64_t number) {
  return (flight != nullptr ? meshtrain::describe(*flight) + ", " : "a collective, ") + "number " +
         std::to_string(number) + " of " + meshtrain::describe(group.label);
}

/// Describes the collective that a rank waits for, of one of its groups.
std::string describe_awaited(const Activity& activity) {
  const GroupSight& group = *activity.find(activity.awaited_group);
  return describe(group, activity.find(group, activity.awaited), activity.awaited);
}

/// Describes the last thing that a rank did that does not wait.
std::string history(const RankSight& rank) {
  std::string text = "it was in " + rank.phase.text;
  if (rank.activity.still_ms > 0) text += ", where nothing has changed for " + in_seconds(rank.activity.still_ms);
  const std::string last = last_collective(rank.activity);
  return text + (last.empty() ? "; it has issued no collective" : "; its last collective was " + last);
}

class Search {
 public:
  explicit Search(const std::vector<RankSight>& ranks) : ranks_(ranks) {}

  // A rank that has issued the awaited collective may have a device that is stuck in an earlier one. Only that rank
  // shows it.
  std::optional<Verdict> verdict() {
    std::optional<Verdict> first;
    for (const RankSight* rank : waiting()) {
      const std::optional<Verdict> found = follow(rank);
      if (found && found->cause != Cause::Transport) return found;
      if (!first) first = found;
    }
    return first;
  }

 private:
  std::optional<Verdict> follow(const RankSight* current) {
    path_.clear();
    waiting_ms_ = current->activity.still_ms;
    for (;;) {
      path_.push_back(current);
      const int64_t number = current->activity.awaited;
      const GroupSight* const group = current->activity.find(current->activity.awaited_group);
      if (group == nullptr) return std::nullopt;  // it has gone on meanwhile
      std::vector<const RankSight*> halted, halted_later, absent, arrived;
      for (const RankSight* member : others_of(*current, group->key)) {
        const GroupSight* const theirs = member->activity.find(group->key);
        const int64_t issued = theirs != nullptr ? theirs->issued : 0, ended = theirs != nullptr ? theirs->ended : 0;
        // One that runs again, as it is told to end, may have ended it meanwhile.
        const bool woke = member->activity.halted_ms > 0;
        if (is_halted(*member)) (ended < number || woke ? halted : halted_later).push_back(member);
        if (issued < number) absent.push_back(member);
        if (issued >= number && ended < number) arrived.push_back(member);
      }
      if (absent.empty() && halted.empty()) halted = halted_later;  // the others may need one that has ended its part
      if (!halted.empty()) return of_halted(speakers_of(halted), *group, number);
      if (absent.empty()) return of_arrived(*current, arrived, *group, number);
      const auto busy =
          std::find_if(absent.begin(), absent.end(), [](const RankSight* r) { return !r->activity.waits; });
      if (busy != absent.end()) return of_busy(absent, *group, number);
      const auto next = std::find_if(absent.begin(), absent.end(), [&](const RankSight* r) { return !is_on_path(r); });
      if (next == absent.end()) return of_circle(*absent.front());
      current = *next;
    }
  }

  /// Returns the ranks that wait, that which has waited longest first.
  std::vector<const RankSight*> waiting() const {
    std::vector<const RankSight*> all;
    for (const RankSight& rank : ranks_) {
      if (rank.activity.waits && !is_halted(rank)) all.push_back(&rank);
    }
    std::ranges::stable_sort(all, std::greater(), [](const RankSight* rank) { return rank->activity.still_ms; });
    return all;
  }

  /// Returns the other ranks that have made the group.
  std::vector<const RankSight*> others_of(const RankSight& rank, uint64_t key) const {
    std::vector<const RankSight*> others;
    for (const RankSight& other : ranks_) {
      if (other.rank != rank.rank && other.activity.find(key) != nullptr) others.push_back(&other);
    }
    return others;
  }

  /// Returns `halted` with the rank that does not speak in the place of those that are seen through it alone.
  std::vector<const RankSight*> speakers_of(const std::vector<const RankSight*>& halted) const {
    std::vector<const RankSight*> speakers;
    for (const RankSight* rank : halted) {
      const auto speaker =
          std::ranges::find_if(ranks_, [&](const RankSight& any) { return any.rank == rank->speaker; });
      const bool is_known = rank->activity.is_stopped || speaker == ranks_.end() || !is_halted(*speaker);
      const RankSight* const blamed = is_known ? rank : &*speaker;
      if (std::ranges::find(speakers, blamed) == speakers.end()) speakers.push_back(blamed);
    }
    return speakers;
  }

  bool is_on_path(const RankSight* rank) const { return std::find(path_.begin(), path_.end(), rank) != path_.end(); }

  Verdict make(Cause cause, const std::vector<const RankSight*>& blamed, const std::string& text) const {
    Verdict verdict{cause, {}, text};
    for (const RankSight* rank : blamed) verdict.ranks.push_back(rank->rank);
    return verdict;
  }

  /// "rank 2 (...) on a holds up 7 ranks, for 12 s, in all_reduce ...: ".
  std::string holds_up(const std::vector<const RankSight*>& blamed, const GroupSight& group, int64_t number) const {
    const auto waiting = std::count_if(ranks_.begin(), ranks_.end(), [&](const RankSight& rank) {
      return rank.activity.waits && std::find(blamed.begin(), blamed.end(), &rank) == blamed.end();
    });
    std::string who = describe_rank(*blamed.front());
    if (blamed.size() > 1) {
      std::vector<int> more;
      for (size_t i = 1; i < blamed.size(); ++i) more.push_back(blamed[i]->rank);
      who += ", and " + list(more) + " likewise,";
    }
    return who + (blamed.size() > 1 ? " hold up " : " holds up ") + counted(waiting, "rank") + ", for " +
           in_seconds(waiting_ms_) + " in " + describe(group, path_.back()->activity.find(group, number), number) +
           ": ";
  }

  Verdict of_halted(const std::vector<const RankSight*>& halted, const GroupSight& group, int64_t number) const {
    const RankSight& first = *halted.front();
    const bool stopped = first.activity.is_stopped;
    const std::string why = stopped ? "its process is stopped, by a signal or a debugger"
                            : first.has_record
                                ? "its process does not run: it is stopped or swapped out, or its host hangs"
                                : "it has left no record: it was killed, or is stopped, or its host or disk hangs";
    return make(stopped ? Cause::Stopped : Cause::Frozen, halted,
                holds_up(halted, group, number) + why + "; " + history(first));
  }

  Verdict of_busy(const std::vector<const RankSight*>& absent, const GroupSight& group, int64_t number) const {
    std::vector<const RankSight*> busy;
    for (const RankSight* rank : absent) {
      if (!rank->activity.waits) busy.push_back(rank);
    }
    const RankSight& first = *busy.front();
    const bool reads = first.phase.kind == PhaseKind::Reading;
    const bool saves = first.phase.kind == PhaseKind::Saving;
    const std::string why = reads   ? "it reads data"
                            : saves ? "it writes a checkpoint"
                                    : "it has not reached this collective";
    return make(reads   ? Cause::Reading
                : saves ? Cause::Saving
                        : Cause::Absent,
                busy, holds_up(busy, group, number) + why + "; " + history(first));
  }

  Verdict of_circle(const RankSight& closing) const {
    const auto begin = std::find(path_.begin(), path_.end(), &closing);
    const std::vector<const RankSight*> circle(begin, path_.end());
    std::string text =
        "ranks issue collectives in different orders, or one rank skips a collective, and wait for each other for " +
        in_seconds(waiting_ms_) + ":";
    for (size_t i = 0; i < circle.size(); ++i) {
      const Activity& activity = circle[i]->activity;
      text += (i == 0 ? " " : "; ") + describe_rank(*circle[i]) + " in " + describe_awaited(activity) + ", in " +
              circle[i]->phase.text;
    }
    return make(Cause::Order, circle, text);
  }

  Verdict of_arrived(const RankSight& current, const std::vector<const RankSight*>& arrived, const GroupSight& group,
                     int64_t number) const {
    const Flight* const mine = current.activity.find(group, number);
    for (const RankSight* other : arrived) {
      const Flight* const theirs = other->activity.find(*other->activity.find(group.key), number);
      if (mine == nullptr || theirs == nullptr || fit(*mine, *theirs)) continue;
      return make(Cause::Different, {&current, other},
                  "ranks issue different collectives as number " + std::to_string(number) + " of " +
                      meshtrain::describe(group.label) + ", and wait for " + in_seconds(waiting_ms_) + ": " +
                      describe_rank(current) + " " + meshtrain::describe(*mine) + ", in " + current.phase.text + "; " +
                      describe_rank(*other) + " " + meshtrain::describe(*theirs) + ", in " + other->phase.text);
    }
    return make(
        Cause::Transport, {},
        describe_rank(current) + " has waited " + in_seconds(waiting_ms_) + " in " + describe(group, mine, number) +
            ", which all ranks of the group have reached: the network or the memory between them does not respond");
  }

  const std::vector<RankSight>& ranks_;
  std::vector<const RankSight*> path_;
  int64_t waiting_ms_ = 0;
};

}  // namespace

RankFailure failure_of(const Verdict& verdict, const std::vector<RankSight>& ranks, const std::string& line) {
  RankFailure failure{.cause = verdict.cause, .ranks = verdict.ranks, .message = line};
  for (const RankSight& rank : ranks) {
    if (verdict.ranks.empty() || rank.rank != verdict.ranks.front()) continue;
    failure.host = rank.host;
    failure.phase = name(rank.phase.kind);
    failure.step = rank.phase.step;
    failure.during = rank.phase.text;
  }
  return failure;
}

std::string in_seconds(int64_t milliseconds) {
  return std::to_string((milliseconds + 500) / 1000) + " s";
}

std::string state_of(const RankSight& rank) {
  const Activity& activity = rank.activity;
  if (activity.halted_ms > 0) return "did not run for " + in_seconds(activity.halted_ms) + " before this record";
  if (!rank.runs) return "has no record";
  const GroupSight* const group = activity.find(activity.awaited_group);
  const std::string state = !activity.waits ? "computes"
                                            : "waits in number " + std::to_string(activity.awaited) + " of " +
                                                  (group != nullptr ? describe(group->label) : "group ?");
  char still[32];
  std::snprintf(still, sizeof still, "%.1f s", static_cast<double>(activity.still_ms) / 1e3);
  return state + ", unchanged for " + still;
}

std::string last_collective(const Activity& activity) {
  const GroupSight& last = activity.last;
  return last.pending.number == 0 ? "" : describe(last, &last.pending, last.pending.in_group);
}

std::optional<Verdict> judge(const std::vector<RankSight>& ranks) {
  return Search(ranks).verdict();
}

}  // namespace meshtrain
