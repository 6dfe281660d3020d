#pragma once

#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// A line about a run: {"loss", "2.013", "least 1.98 at step 480"}.
struct Fact {
  std::string label;
  std::string value;
  std::string note;  ///< may be empty
};

/// Returns what is known of a run, the most important first; nothing for what its files do not say.
std::vector<Fact> facts_of(const RunRecord& run);

/// Returns ": rank 3, killed, in step 241" for a start that failed; empty when the reason is not known.
std::string reason_of(const RunStart& start);

/// Returns "done", "stopped on request", "interrupted", "failed" with the reason, or "no end yet".
std::string how_it_ended(const RunStart& start);

/// Returns how_it_ended() of the last start of a run, or the time of its last line if it has not ended.
std::string state_of(const RunRecord& run);

/// Returns how many starts of a run failed, or have no end, before another one followed.
int64_t num_interruptions(const RunRecord& run);

/// Returns a time in seconds since 1970 as "2026-03-01 12:00:05", in the local time zone; "-" for 0.
std::string time_text(double seconds);

/// Returns the name of a part of the goodput ledger for people: "exposed communication".
std::string part_name(std::string part);

/// A key that not all recipes have the same value of.
struct RecipeDifference {
  std::string key;
  std::vector<std::string> values;  ///< by run; "-" where a recipe has no such key
};

/// Returns the keys whose values differ among the recipes of `runs`, in the order of the first recipe that has them.
/// Runs whose recipe is not known are left out of the comparison, and have "?".
std::vector<RecipeDifference> recipe_differences(const std::vector<const RunRecord*>& runs);

}  // namespace meshtrain
