#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/watch/connection.h"

namespace meshtrain {

/// Rank 0's end of the connections with ranks of other hosts. Whoever connects without the secret learns nothing and is
/// let go.
class Listener {
 public:
  /// Listens on a port that the system chooses. Without network there are no addresses in its invitation.
  Listener();

  const Invitation& invitation() const { return invitation_; }
  /// Adds what work() waits for.
  void wait_for(std::vector<pollfd>& files) const;
  /// Takes what has come and answers it with `self`.
  void work(const Sighting& self);
  /// The frames of those that were lost since the last call, which were there before.
  std::vector<std::pair<Frame, Loss>> lost();
  /// Whether `rank` is connected.
  bool answers(int64_t rank) const;
  /// Tells all others that the job ends and why has been said.
  void tell_end();
  /// Returns true when any of them has said so.
  bool job_ends() const { return job_ends_; }
  /// Tells all others that this rank ends.
  void leave();
  /// Whether every other end has closed its connection, which may take until they come to their end.
  bool is_left() const;

 private:
  struct Guest {
    Connection connection;
    std::chrono::steady_clock::time_point since;
  };

  Frame frame(Frame::Kind kind) const;

  bool has_room() const { return guests_.size() < most_guests_; }

  size_t most_guests_;  // files are for others too: the rest waits before the door
  Invitation invitation_;
  Descriptor socket_;
  std::vector<Guest> guests_;
  Sighting self_;
  bool job_ends_ = false;
};

}  // namespace meshtrain
