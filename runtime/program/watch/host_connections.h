#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mesh/base/files/descriptor.h"
#include "runtime/program/watch/sighting.h"
#include "runtime/program/watch/siphash.h"

namespace meshtrain {

/// The data that ranks of other hosts need to connect to rank 0. It is plain memory and is sent only over MPI.
struct Invitation {
  Secret secret{};
  size_t num_addresses = 0;
  std::array<sockaddr_storage, 16> addresses{};  ///< those of rank 0's host, with its port

  /// Returns the addresses as text: "10.0.0.1, fd00::1".
  std::string text() const;
};

/// The way in which a connection was lost.
enum class Loss {
  None,
  Ended,   ///< the process at the other end has ended: its system closed the connection
  Silent,  ///< the other host has not answered for silence_limit(): no power, no network
};

/// The TCP connections of this rank with ranks of other hosts. None of its functions blocks. Rank 0 accepts
/// connections. Any other rank calls rank 0 at each of its addresses until one answers, then sends its own state and
/// those of other ranks of its host, once a second. It sends each frame after the answer to the previous one, so that
/// frames do not pile up for a stopped process.
///
/// The kernels at both ends probe each other, even while a process is stopped or computes; an end that does not answer
/// for silence_limit() is lost.
///
/// Neither end sends the secret. Each end first sends a random nonce. Every later frame carries the siphash(), under
/// the secret, of both nonces, the sender's side, the frame's number on this connection and the frame. Without the
/// secret nobody can forge a frame, or replay one: an earlier frame, one of another connection or one of the other
/// side. A client that does not know the secret learns nothing and is disconnected.
class HostConnections {
 public:
  using Clock = std::chrono::steady_clock;

  /// For rank 0: listens on a port that the system chooses. Without a network the invitation has no addresses.
  HostConnections();
  /// For any other rank: stores the invitation; work() connects.
  HostConnections(const Invitation& invitation, int rank);
  ~HostConnections();

  const Invitation& invitation() const { return invitation_; }
  /// Adds the descriptors that work() waits for.
  void wait_for(std::vector<pollfd>& files) const;
  /// Connects, sends and receives as far as possible. `others`: ranks of this host whose states this rank sends too.
  void work(const Sighting& self, const std::vector<std::pair<int, Sighting>>& others = {});

  /// The last state that a rank of another host has shown, and its time.
  struct LastSighting {
    Sighting sighting;
    Clock::time_point when;
    int speaker;  ///< the rank that sent it: this rank, or the first of its host
  };
  const std::map<int, LastSighting>& seen() const { return seen_; }
  /// Returns true while `rank` is connected.
  bool answers(int rank) const;
  /// Returns the ranks lost since the last call. A rank that has lost rank 0 calls it again from then on.
  std::vector<std::pair<int, Loss>> lost();
  /// Returns true once, after calls to all addresses of rank 0 have failed and none was ever answered.
  bool is_refused() { return std::exchange(is_refused_, false); }

  /// Tells the other ends that the job ends and that the cause has been reported.
  void send_end();
  /// Returns true when another end has sent that message.
  bool job_ends() const { return job_ends_; }
  /// Tells the other ends that this rank ends.
  void leave();
  /// Returns true when every other end has closed its connection, which each does only when it ends itself.
  bool is_left() const;

 private:
  struct Frame;
  struct Peer;

  void call();
  void receive(Peer& peer);
  void speak(const std::vector<std::pair<int, Sighting>>& others);
  bool send(Peer& peer, Frame frame);

  int rank_;
  size_t most_clients_;  // leaves descriptors for other uses; further clients wait in the backlog
  Descriptor listening_;
  Invitation invitation_;
  std::vector<Peer> peers_;  // on rank 0 its clients; on any other rank at most rank 0
  Sighting self_;
  std::map<int, LastSighting> seen_;  // by rank
  size_t num_calls_ = 0;              // since the start, or since rank 0 was lost
  Clock::time_point called_;
  bool is_refused_ = false;
  bool leaves_ = false;
  bool job_ends_ = false;
};

/// Returns 30 s, or the seconds in the environment variable MESHTRAIN_SILENCE_LIMIT.
std::chrono::seconds silence_limit();

}  // namespace meshtrain
