#include "runtime/program/watch/stall_watch.h"

#include <algorithm>

namespace meshtrain {
namespace {

using Milliseconds = std::chrono::milliseconds;

int64_t milliseconds(std::chrono::duration<double> time) {
  return std::chrono::duration_cast<Milliseconds>(time).count();
}

bool names_halted(const Verdict& verdict) {
  return verdict.cause == Verdict::Cause::Stopped || verdict.cause == Verdict::Cause::Frozen;
}

/// Returns true while a rank of another host, which shows itself every second, has not done so. What is known of it may
/// be older than its stop; in a moment it shows itself, or is known not to run.
bool is_any_silent(const std::vector<RankSight>& ranks) {
  constexpr int64_t kSilent = 2000;  // milliseconds
  return std::ranges::any_of(ranks, [](const RankSight& rank) { return rank.runs && rank.silent_ms > kSilent; });
}

/// Returns true when the ranks wait for a process that has not run for `least` milliseconds.
bool is_halt(const std::optional<Verdict>& verdict, const std::vector<RankSight>& ranks, int64_t least) {
  if (!verdict || !names_halted(*verdict)) return false;
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankSight& rank) {
    return rank.rank == verdict->ranks.front() && !rank.runs && rank.silent_ms >= least;
  });
}

}  // namespace

void Stillness::note_halt(Clock::duration time) {
  halt_ = time;
  halt_ended_ = moved_ = Clock::now();
}

void Stillness::note(int64_t num_records, const std::string& phase, bool limited, Activity& activity) {
  const Clock::time_point now = Clock::now();
  if (num_records != num_records_ || phase != phase_ || limited != was_limited_) {
    const auto still = std::chrono::duration_cast<Milliseconds>(now - moved_);
    if (limited && was_limited_) {
      second_ = std::max(second_, std::min(longest_, still));
      longest_ = std::max(longest_, still);
    }
    num_records_ = num_records;
    phase_ = phase;
    was_limited_ = limited;
    moved_ = now;
  }
  activity.still_ms = std::chrono::duration_cast<Milliseconds>(now - moved_).count();
  activity.usual_ms = second_.count();
  activity.is_limited = limited;
  const bool is_recent = now - halt_ended_ < std::chrono::seconds(2);
  activity.halted_ms = is_recent ? std::chrono::duration_cast<Milliseconds>(halt_).count() : 0;
}

StallWatch::Decision StallWatch::look(const std::vector<RankSight>& ranks, const StallLimits& limits) {
  Decision decision;
  const auto now = std::chrono::steady_clock::now();
  int64_t longest = 0, waiting = 0;
  bool stop_asked = false;
  for (const RankSight& rank : ranks) {
    const Activity& activity = rank.activity;
    longest = std::max(longest, activity.usual_ms);
    stop_asked = stop_asked || activity.is_stop_asked;
    if (activity.is_limited && activity.waits && rank.runs) waiting = std::max(waiting, activity.still_ms);
  }
  if (stop_asked && !stop_asked_) stop_asked_ = now;

  // A rank that waits long is nothing new where steps are long. What ended before the first warning counts.
  if (!is_told_) {
    const int64_t warning = milliseconds(limits.warning);
    // Stalls that were told are stillnesses too: they raise the limit only so far.
    const int64_t most = std::max(milliseconds(limits.timeout) / 2, longest + longest / 2);
    told_after_ms_ = std::max(warning, std::min(3 * longest, most));
    // A process that does not run is no long step.
    if (waiting >= warning && waiting < told_after_ms_ && is_halt(judge(ranks), ranks, warning)) {
      told_after_ms_ = warning;
    }
  }
  if (waiting < told_after_ms_) {
    if (is_told_ && waiting < milliseconds(limits.warning) / 2) {
      const auto time = std::chrono::duration_cast<Milliseconds>(now - told_).count() + told_after_ms_;
      decision.lines.push_back("the ranks continue, after " + in_seconds(time));
      decision.ended_after = time;
      is_told_ = false;
    }
    return decision;
  }
  const std::optional<Verdict> verdict = judge(ranks);
  if (!verdict) return decision;
  if (!is_told_ && !names_halted(*verdict) && is_any_silent(ranks)) return decision;
  if (!is_told_) {
    is_told_ = true;
    told_ = now;
    decision.lines.push_back(verdict->text);
    decision.told = verdict;
  }
  const bool saves = verdict->cause == Verdict::Cause::Saving;  // a slow disk is waited for: it reports by itself
  if (waiting >= std::max(milliseconds(limits.timeout), told_after_ms_) && !saves) {
    decision.told = verdict;
    decision.end = verdict->text + "; the run ends after parallel.timeout, " + in_seconds(milliseconds(limits.timeout));
    return decision;
  }
  const bool insists = stop_asked_ && now - *stop_asked_ >= Milliseconds(told_after_ms_);
  if (insists && !saves) {
    const std::string& last = limits.last_checkpoint;
    decision.told = verdict;
    decision.end = "a stop was requested, but no checkpoint can be written (" +
                   (last.empty() ? std::string("there is none") : "the last is " + last) + "): " + verdict->text;
  }
  return decision;
}

}  // namespace meshtrain
