#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/group.h"
#include "mesh/host_map.h"
#include "runtime/program/watch/board.h"
#include "runtime/program/watch/host_connections.h"
#include "runtime/program/watch/stall_watch.h"

namespace meshtrain {

/// A watch of all ranks over each other, from when they are connected until they end. When a process disappears without
/// a word (killed, perhaps by the kernel because memory ran out), or a host does (no power, no network), one of the
/// remaining ranks reports which it was and its last phase (Phase), and aborts the job. Most launchers end a job too,
/// but report neither.
///
/// A thread of its own, which issues no collectives, publishes this rank's phase every few hundredths of a second on a
/// Board that the ranks of a host share, and checks that the process of the next rank exists. The first rank of each
/// host does the same over a connection with rank 0, and so does a rank without a Board. Hosts that cannot connect are
/// reported in a line.
///
/// One rank of each host judges when ranks stand still (StallWatch), as long as StallLimits are set: on rank 0's host
/// for all ranks; on another only when rank 0 does not answer. It prints for whom the others wait, and ends the job
/// after the limit. When the end of the job is reported, and on SIGQUIT, every rank writes its flights
/// (flight_files.h).
///
/// When only the connection with a host is lost, the host may be alive behind a broken network: the
/// job then ends only if this rank stays in one phase for longer than
///   max(2 silence_limit() after a silence, or silence_limit() / 3 after an end; 3 times its longest phase so far)
class Watch {
 public:
  /// Every rank of `world` must construct one. With one rank it does nothing.
  explicit Watch(const Group& world);
  /// Ends the watch. Every rank must have reached its end (meet_at_end()), or the others report this one as gone.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Announces that this process ends the job and reports the cause itself, so that no rank, on any host, reports it or
  /// another as gone. Call it before abort_mpi(), on any thread; no collective. It does not block, even if the thread
  /// of the watch is blocked.
  static void excuse();
  /// Writes this rank's flights, and waits a moment until the other ranks of its host have written theirs, because the
  /// job's end is reported (excuse()) or all ranks fail alike. Call it after the cause is printed; no collective.
  static void keep_last_flights();

 private:
  using Clock = std::chrono::steady_clock;
  struct LostRank {
    Loss loss;
    Sighting seen;  // its last state
    Clock::time_point since;
    bool is_reported = false;
  };

  void look();
  void show();
  Sighting sight();
  /// Returns the other ranks of this host, which this rank speaks for.
  std::vector<std::pair<int, Sighting>> others_here() const;
  void look_for_stall();
  bool judges();
  std::vector<RankSight> sights();
  /// Returns true when the process of this slot has shown a beat lately.
  bool runs(int index, const Board::Slot& slot);
  void keep_flights();
  void await_flights() const;
  void note_progress(const Sighting& self);
  void spread_end();
  void send_end();
  bool is_end_reported() const;
  void look_at_next();
  void look_at_hosts();
  void look_at(int rank, LostRank& lost);
  void wait(std::unique_lock<std::timed_mutex>& lock) const;
  void leave();
  RankFailure describe(int rank, const LostRank& lost) const;
  /// Returns how long this rank may stay in one phase after a loss.
  Clock::duration patience(Loss loss) const;
  /// Returns the values of a failure whose cause lies in a rank that was last seen so.
  static RankFailure failure_of(FailureCause cause, std::vector<int> ranks, const Sighting& seen);
  [[noreturn]] void report_and_abort(const RankFailure& failure);

  HostMap hosts_;
  int rank_;
  std::string name_;  // of this rank
  std::unique_ptr<Board> board_;
  std::optional<HostConnections> connections_;
  int num_missing_ = 0;              // consecutive looks that found the next process gone
  int end_signal_ = 0;               // the signal that ended it; 0: unknown
  std::map<int, LostRank> lost_;     // by rank
  std::string phase_;                // of this rank
  Clock::time_point moved_;          // when this phase began
  Clock::duration longest_phase_{};  // of the phases that have ended

  std::timed_mutex mutex_;
  std::atomic<bool> ends_ = false;
  bool is_spread_ = false;  // other hosts know that the job ends
  struct Beat {
    int64_t count = 0;
    Clock::time_point since;
  };
  std::vector<Beat> beats_;                       // of the ranks of this host
  std::vector<std::pair<int, Sighting>> others_;  // others_here(), lately
  Clock::time_point others_seen_;
  Stillness stillness_;
  StallWatch stalls_;
  Clock::time_point looked_ = Clock::now(), judged_;
  bool has_kept_flights_ = false;
  Descriptor wake_;
  std::thread thread_;
};

}  // namespace meshtrain
