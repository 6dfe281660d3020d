#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/telemetry/events.h"
#include "runtime/program/watch/activity.h"
#include "runtime/program/watch/phase.h"

namespace meshtrain {

/// A rank, as it is seen when ranks stand still.
struct RankSight {
  int rank = 0;
  std::string host, name;  ///< name: "rank 3 (dp=0 cp=0 tp=1)"
  PhaseState phase;
  bool runs = true;  ///< its beat grows: the process gets processor time
  Activity activity;
  int64_t silent_ms = 0;   ///< since its beat has grown
  int speaker = -1;        ///< the rank through which it is seen, the first of its host; -1: it is seen by itself
  bool has_record = true;  ///< false: known from the records of others alone
};

/// The answer to the question for whom everybody waits.
struct Verdict {
  using Cause = FailureCause;

  Cause cause;
  std::vector<int> ranks;  ///< those that hold up the others, or that differ
  std::string text;        ///< one line, without an end: "everybody waits for rank 2 (...) on host a: ..."
};

/// Returns the values of a verdict on `ranks`, with the line that is printed.
RankFailure failure_of(const Verdict& verdict, const std::vector<RankSight>& ranks, const std::string& line);

/// Formats milliseconds as whole seconds: "12 s".
std::string in_seconds(int64_t milliseconds);

/// Returns what a rank does: "waits in number 12 of group tp, unchanged for 3.0 s", "did not run for 20 s before this
/// record".
std::string state_of(const RankSight& rank);

/// Returns "all_reduce of [4] Float for vote, number 12 of group world", the collective that a rank issued last; empty
/// when it has issued none.
std::string last_collective(const Activity& activity);

/// Finds out for whom ranks wait. None when no rank waits for a collective. Ranks that are missing in `ranks` are not
/// blamed. Follows the rank that has waited longest to the rank that it waits for, and so on, until one does not wait.
std::optional<Verdict> judge(const std::vector<RankSight>& ranks);

}  // namespace meshtrain
