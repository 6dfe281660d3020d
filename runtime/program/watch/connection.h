#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/watch/descriptor.h"
#include "runtime/program/watch/sighting.h"
#include "runtime/program/watch/siphash.h"

namespace meshtrain {

/// The data that ranks of other hosts need to connect with rank 0: its addresses, and the secrets by which each side
/// authenticates its frames. Rank 0 makes it; it is sent over MPI alone.
struct Invitation {
  std::vector<std::string> addresses;  ///< numeric, of rank 0's host
  int port = 0;
  Secret of_rank_0{};
  Secret of_others{};

  /// Returns the invitation as one line, which parse() reads.
  std::string text() const;
  static Invitation parse(const std::string& text);
};

/// A message, in either direction: a rank and what it is doing.
struct Frame {
  enum Kind : int64_t {
    kHere = 1,
    kLeaves = 2,
    kJobEnds = 3,  ///< the cause has been reported: ranks that are lost from now on are not
    kAbout = 4,    ///< about another rank of the sender's host
  };

  int64_t kind = kHere;
  int64_t rank = 0;
  Sighting sender;
};

/// The way in which a connection was lost.
enum class Loss {
  None,
  Ended,   ///< the process at the other end has ended: its system closed the connection
  Silent,  ///< the other host has not answered for silence_limit(): no power, no network
};

/// A TCP connection between two ranks that never blocks. The kernels at both ends probe each other, even while a
/// process is stopped or computes; an end that does not answer for silence_limit() is lost.
///
/// Neither end shows its secret. Each first sends a random nonce; then every frame carries the siphash(), under the
/// sender's secret, of both nonces, the frame's number on this connection and the frame. So nobody without the job's
/// secrets can forge a frame, nor replay one of another connection or an earlier one.
class Connection {
 public:
  /// `ours` authenticates the frames that this end sends, `theirs` those that it receives.
  Connection(Descriptor socket, const Secret& ours, const Secret& theirs);

  int number() const { return socket_.number(); }
  /// Reads what has arrived. Returns true when a frame is complete; last() then returns it.
  bool receive();
  /// Sends this end's nonce, once; receive() also does so when the other end's nonce has arrived.
  void greet();
  bool has_greeted() const { return has_greeted_; }
  /// Returns false when `frame` cannot be sent now, or when the other end has not greeted yet. The rest of a frame for
  /// which the system has no room follows at the next call of send() or receive().
  bool send(const Frame& frame);
  /// Sends `farewell` after the unsent bytes of earlier frames, and nothing afterwards.
  void leave(const Frame& farewell);
  void close() { socket_.reset(); }

  /// Returns true when the other end has ever proved that it knows its secret.
  bool is_known() const { return known_; }
  /// Returns how the connection was lost; None after a farewell.
  Loss loss() const { return loss_; }
  bool is_closed() const { return !socket_.is_open(); }
  /// Returns the other end's last frame about itself.
  const Frame& last() const { return last_; }
  /// Returns the frame that receive() has just completed.
  const Frame& received() const { return incoming_.frame; }

 private:
  struct Sealed {
    uint64_t seal;
    Frame frame;
  };
  using Nonce = std::array<unsigned char, 16>;

  bool may_send() const;
  /// Seals a frame and appends it to the unsent bytes.
  void add(const Frame& frame);
  /// Sends the unsent bytes. Returns true when none are left.
  bool send_rest();
  /// Reads the part of `into` that has arrived. Returns true when it is complete.
  bool receive(void* into, size_t bytes);
  static uint64_t seal(const Secret& secret, const Nonce& of_sender, const Nonce& of_receiver, uint64_t number,
                       const Frame& frame);

  Descriptor socket_;
  Secret ours_, theirs_;
  Nonce nonce_{}, their_nonce_{};
  bool has_greeted_ = false, is_greeted_ = false;
  uint64_t num_sent_ = 0, num_received_ = 0;  // frames
  std::string unsent_;                        // the rest of the last ones
  Sealed incoming_;
  Frame last_;
  size_t received_ = 0;  // bytes of the nonce or frame that is being received
  bool known_ = false;
  bool left_ = false;    // the other end
  bool leaves_ = false;  // this end closes its direction once everything is sent
  Loss loss_ = Loss::None;
};

/// Returns 30 s, or the seconds in the environment variable MESHTRAIN_SILENCE_LIMIT.
std::chrono::seconds silence_limit();

}  // namespace meshtrain
