#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program/watch/connection.h"

namespace meshtrain {

/// The client's end of the connection with rank 0, on a rank of another host. It finds an address of rank 0 that
/// answers, then sends what this rank is doing, and the other ranks of its host, once a second. It sends a message only
/// after the answer to the one before, so that nothing piles up before a process that is stopped.
class Caller {
 public:
  /// Stores the invitation; work() connects.
  Caller(Invitation invitation, int rank);

  void wait_for(std::vector<pollfd>& files) const;
  /// `others`: other ranks of this host, which this rank speaks for.
  void work(const Sighting& self, const std::vector<std::pair<int, Sighting>>& others = {});
  /// Returns rank 0's last frame about itself, and when it came; none without a connection.
  std::optional<std::pair<Frame, std::chrono::steady_clock::time_point>> last_answer() const;
  /// Returns rank 0's last frame once, after the connection with it was lost. work() connects again from then on.
  std::optional<std::pair<Frame, Loss>> lost();
  /// Returns true while rank 0 is connected.
  bool answers() const { return connection_ && connection_->is_known() && !connection_->is_closed(); }
  /// Returns true once, when no address has ever answered.
  bool is_refused();
  const Invitation& invitation() const { return invitation_; }
  /// Tells rank 0 that the job ends and that the cause has been reported.
  void send_end();
  /// Returns true when rank 0 has sent that message.
  bool job_ends() const { return job_ends_; }
  void leave();
  bool is_left() const { return !connection_ || connection_->is_closed(); }

 private:
  using Clock = std::chrono::steady_clock;

  void call_next();
  bool is_connected() const;
  bool has_failed() const;
  Frame frame(Frame::Kind kind) const;
  void note_end();

  Invitation invitation_;
  int rank_;
  Sighting self_;
  size_t num_calls_ = 0;
  std::optional<Connection> connection_;
  Clock::time_point called_, sent_;
  bool has_sent_ = false;
  bool has_answer_ = false;  // to the last message sent
  Clock::time_point answered_;
  size_t num_told_ = 0;  // of the others, since the last message about this rank
  bool is_refused_ = false, has_reported_ = false;
  bool is_lost_ = false;  // after it had answered
  bool leaves_ = false;
  bool job_ends_ = false;
};

}  // namespace meshtrain
