#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/watch/connection.h"

namespace meshtrain {

/// Rank 0's end of the connections with ranks of other hosts. A client without the secret learns nothing and is
/// disconnected.
class Listener {
 public:
  /// Listens on a port that the system chooses. Without a network the invitation has no addresses.
  Listener();

  const Invitation& invitation() const { return invitation_; }
  /// Adds the descriptors that work() waits for.
  void wait_for(std::vector<pollfd>& files) const;
  /// The last state that a rank of another host has shown, and its time.
  struct Seen {
    Sighting sighting;
    std::chrono::steady_clock::time_point when;
    int64_t speaker;  ///< the rank that sent it: this one, or the first of its host
  };
  const std::map<int64_t, Seen>& seen() const { return seen_; }
  /// Receives frames and answers each with `self`.
  void work(const Sighting& self);
  /// Returns the last frames of the ranks that were connected and have been lost since the last call.
  std::vector<std::pair<Frame, Loss>> lost();
  /// Returns true while `rank` is connected.
  bool answers(int64_t rank) const;
  /// Tells all others that the job ends and that the cause has been reported.
  void send_end();
  /// Returns true when any of them has sent that message.
  bool job_ends() const { return job_ends_; }
  /// Tells all others that this rank ends.
  void leave();
  /// Returns true when every other end has closed its connection, which each does only when it ends itself.
  bool is_left() const;

 private:
  struct Guest {
    Connection connection;
    std::chrono::steady_clock::time_point since;
    int64_t rank = -1;  // once it has spoken of itself
  };

  Frame frame(Frame::Kind kind) const;

  bool has_room() const { return guests_.size() < most_guests_; }

  size_t most_guests_;  // leaves descriptors for other uses; further clients wait in the backlog
  Invitation invitation_;
  Descriptor socket_;
  std::vector<Guest> guests_;
  Sighting self_;
  std::map<int64_t, Seen> seen_;  // by rank
  bool job_ends_ = false;
};

}  // namespace meshtrain
