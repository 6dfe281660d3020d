#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace meshtrain {

// RUN_DIR/events.jsonl: what became of a run, one JSON object a line: "time" in seconds since 1970, "event", and the
// values of the event below. Each line is one write, by the rank that knows the event: rank 0, or any other that has
// found a rank's failure. A start appends.

/// The reason why a rank failed or holds up others.
enum class FailureCause {
  Killed,     ///< its process has ended without a word
  Network,    ///< its host does not answer: no power, no network
  Exception,  ///< the rank itself reports the error
  Stopped,    ///< its process is stopped, by a signal or a debugger
  Frozen,     ///< its process does not run: it is swapped out, or its host hangs
  Reading,    ///< it reads data
  Saving,     ///< it writes a checkpoint
  Absent,     ///< it has not come to the collective: it computes, or hangs elsewhere
  Different,  ///< ranks issued different collectives
  Order,      ///< ranks wait for each other in different collectives
  Transport,  ///< all ranks have come to the collective, and it does not end
};

/// Returns "killed": the name of a cause in files.
const char* name(FailureCause cause);
/// Returns "SIGKILL"; empty for 0 and unknown numbers.
std::string signal_name(int signal);

/// The start of a run, before its first step.
struct StartEvent {
  std::string name;                                   ///< of the recipe
  std::vector<std::pair<std::string, int64_t>> mesh;  ///< axes and sizes, outermost first, then ep
  std::vector<std::string> hosts;                     ///< by rank; the file has each once
  int64_t step = 0;                                   ///< after which it continues
  int64_t num_steps = 0;                              ///< train.steps
  int64_t num_parameters = 0, num_trainable = 0;
};

/// The checkpoint that a start continues from.
struct ResumeEvent {
  int64_t step = 0;
  std::string folder;  ///< in the run directory
  double seconds = 0;
  std::vector<std::string> changes;  ///< of the recipe, a line each
};

/// A checkpoint that has become complete.
struct CompletedCheckpoint {
  int64_t step = 0;
  std::string folder;  ///< in the run directory
  double seconds = 0;
};

/// The failure of ranks, or a stall that they cause.
struct RankFailure {
  FailureCause cause = FailureCause::Exception;
  std::vector<int> ranks = {};  ///< the first is the one that the other values are of; empty: all ranks alike
  std::string host = {};        ///< empty: unknown
  int signal = 0;               ///< that ended the process; 0: unknown
  std::string phase = {};       ///< the name of a PhaseKind; empty: unknown
  int64_t step = 0;             ///< of the phase; 0: none
  std::string during = {};      ///< the phase for people: "step 12, forward of block 3"
  std::string message = {};     ///< the line that was printed
};

/// Sets the file that events are appended to from now on; before, they are dropped. `coordinate_of`: the position of a
/// rank on each axis. Every rank sets it: any may be the one that finds a failure.
void keep_events_in(std::filesystem::path file,
                    std::function<std::vector<std::pair<std::string, int64_t>>(int rank)> coordinate_of);

// Append an event. Return why it was not written; empty when it was, or when no file is set. Any thread.
std::string append_event(const StartEvent& started);
std::string append_event(const ResumeEvent& resumed);
std::string append_event(const CompletedCheckpoint& checkpoint);
/// "rank_failed": the job ends because of it.
std::string append_failed(const RankFailure& failure);
/// "stalled": ranks wait, and the job goes on for now.
std::string append_stalled(const RankFailure& stall);
/// "stall_ended", after so many seconds.
std::string append_stall_ended(double seconds);
/// "rank_answers": a rank that append_failed() has named answers again.
std::string append_answers(int rank);
/// "stopped": on request, with a checkpoint. `signal`: 0 for train.time_limit; -1: another rank received it.
std::string append_stopped(int64_t step, int signal);
/// "done": all steps are made, and the weights are exported if that was asked for.
std::string append_done(int64_t step);

}  // namespace meshtrain
