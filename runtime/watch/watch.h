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
#include "runtime/watch/board.h"
#include "runtime/watch/caller.h"
#include "runtime/watch/descriptor.h"
#include "runtime/watch/listener.h"

namespace meshtrain {

/// Has the ranks look after each other, from when they are connected until they end. One that is gone without a word
/// (killed, by the kernel when memory runs out), or a host that is (no power, no network), ends the job: one of those
/// that are left says which it was and where it was seen last (Phase), and aborts. Launchers end a job too, most of
/// them; they know neither.
///
/// A thread of its own, which issues no collectives, shows every few hundredths of a second where this rank is, on a
/// Board that the ranks of a host share, and sees whether the process of the next one is there. The first rank of each
/// host does so over a connection with rank 0, and so does a rank that has no Board. Where hosts cannot connect, a line
/// says so. A host that is lost over its connection alone may be well, behind a network that is not: the job ends only
/// when this rank makes no step either, for longer than its steps last.
class Watch {
 public:
  /// Every rank of `world` must construct one. With one rank it does nothing.
  explicit Watch(const Group& world);
  /// This rank ends as all others do: every rank has come to its end (meet_at_end()).
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// This process ends the job and says itself why: nobody, on any host, has to say that it or another is gone. Call it
  /// before abort_mpi(), on any thread; no collective. It does not block, whatever the thread that looks is held up by.
  static void excuse();

 private:
  using Clock = std::chrono::steady_clock;
  struct Lost {
    Frame frame;
    Loss loss;
    Clock::time_point since;
    bool is_told = false;
  };

  void look();
  void show();
  void note_progress(const Sighting& self);
  void spread_end();
  void tell_end();
  bool is_end_told() const;
  void look_at_next();
  void look_at_hosts();
  void look_at(Lost& lost);
  void wait(std::unique_lock<std::timed_mutex>& lock) const;
  void leave();
  std::string describe(const Lost& lost) const;
  /// How long this rank may stay in one phase after a loss.
  Clock::duration patience(Loss loss) const;
  [[noreturn]] void tell(const std::string& message);

  HostMap hosts_;
  int rank_;
  std::string name_;  // of this rank
  std::unique_ptr<Board> board_;
  std::optional<Listener> listener_;  // of rank 0
  std::optional<Caller> caller_;
  int num_missing_ = 0;              // looks in a row at a process that is gone
  std::map<int64_t, Lost> lost_;     // by rank
  std::string phase_;                // of this rank
  Clock::time_point moved_;          // when it came to this phase
  Clock::duration longest_phase_{};  // of those that it has left

  std::timed_mutex mutex_;
  std::atomic<bool> ends_ = false;
  bool is_spread_ = false;  // that the job ends
  Descriptor wake_;
  std::thread thread_;
};

}  // namespace meshtrain
