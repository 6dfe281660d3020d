#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/watch/descriptor.h"
#include "runtime/watch/sighting.h"
#include "runtime/watch/siphash.h"

namespace meshtrain {

/// How ranks of other hosts reach rank 0: what it listens on, and the secrets by which each side proves what it sends.
/// Rank 0 makes it; it travels through MPI alone.
struct Invitation {
  std::vector<std::string> addresses;  ///< numeric, of rank 0's host
  int port = 0;
  Secret of_rank_0{};
  Secret of_others{};

  /// One line.
  std::string text() const;
  static Invitation parse(const std::string& text);
};

/// A message, in either direction: the sender and what it is doing.
struct Frame {
  enum Kind : int64_t {
    kHere = 1,
    kLeaves = 2,
    kJobEnds = 3,  ///< some rank has said why: who is gone from now on needs no words
  };

  int64_t kind = kHere;
  int64_t rank = 0;
  Sighting sender;
};

/// How a connection was lost.
enum class Loss {
  None,
  Ended,   ///< the process at the other end is gone: its system closed the connection
  Silent,  ///< the other system has not answered for the limit: no power, no network
};

/// A TCP connection between two ranks that never blocks. The systems at both ends prove to each other that they are
/// there, even while a process is stopped or computes; one that does not answer for silence_limit() is lost.
///
/// Neither end shows its secret. Each first sends a random nonce; then every frame carries the siphash(), under the
/// sender's secret, of both nonces, the frame's number on this connection and the frame. So who does not know the
/// secrets of the job can say nothing, and nothing that was said on another connection or before.
class Connection {
 public:
  /// `ours` proves what this end sends, `theirs` what comes.
  Connection(Descriptor socket, const Secret& ours, const Secret& theirs);

  int number() const { return socket_.number(); }
  /// Takes what has come; true when a frame is complete, which last() then is.
  bool receive();
  /// Sends the nonce, once; receive() does so too when the other end's has come.
  void greet();
  bool has_greeted() const { return has_greeted_; }
  /// False when it cannot be sent now, or when the other end has not greeted yet.
  bool send(const Frame& frame);
  /// Sends `farewell` and nothing more.
  void leave(const Frame& farewell);
  void close() { socket_.reset(); }

  /// Returns true when the other end has ever proved that it knows its secret.
  bool is_known() const { return known_; }
  /// None after a farewell.
  Loss loss() const { return loss_; }
  bool is_closed() const { return !socket_.is_open(); }
  const Frame& last() const { return last_; }

 private:
  struct Sealed {
    uint64_t seal;
    Frame frame;
  };
  using Nonce = std::array<unsigned char, 16>;

  /// Takes what has come of `into`; true when it is complete.
  bool receive(void* into, size_t bytes);
  static uint64_t seal(const Secret& secret, const Nonce& of_sender, const Nonce& of_receiver, uint64_t number,
                       const Frame& frame);

  Descriptor socket_;
  Secret ours_, theirs_;
  Nonce nonce_{}, their_nonce_{};
  bool has_greeted_ = false, is_greeted_ = false;
  uint64_t num_sent_ = 0, num_received_ = 0;  // frames
  Sealed incoming_;
  Frame last_;
  size_t received_ = 0;  // bytes of what comes
  bool known_ = false;
  bool left_ = false;
  Loss loss_ = Loss::None;
};

/// 30 s, or MESHTRAIN_SILENCE_LIMIT of the environment, in seconds.
std::chrono::seconds silence_limit();

}  // namespace meshtrain
