#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/watch/connection.h"

namespace meshtrain {

/// The end of a connection with rank 0 on a rank of another host: finds an address of rank 0 that answers, then shows
/// rank 0 once a second what this rank is doing. A second message waits for the answer to the first: nothing piles up
/// before a process that is stopped.
class Caller {
 public:
  /// Nothing is connected yet.
  Caller(Invitation invitation, int rank);

  void wait_for(std::vector<pollfd>& files) const;
  void work(const Sighting& self);
  /// Rank 0, once, after it was lost. It is called again from then on.
  std::optional<std::pair<Frame, Loss>> lost();
  /// Whether rank 0 is connected.
  bool answers() const { return connection_ && connection_->is_known() && !connection_->is_closed(); }
  /// True once, when no address has ever answered.
  bool is_refused();
  const Invitation& invitation() const { return invitation_; }
  /// Tells rank 0 that the job ends and why has been said.
  void tell_end();
  /// Returns true when rank 0 has said so.
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
  bool has_answer_ = false;  // to what was sent last
  bool is_refused_ = false, has_told_ = false;
  bool is_lost_ = false;  // after it had answered
  bool leaves_ = false;
  bool job_ends_ = false;
};

}  // namespace meshtrain
