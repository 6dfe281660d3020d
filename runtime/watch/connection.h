#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/watch/descriptor.h"
#include "runtime/watch/sighting.h"

namespace meshtrain {

using Secret = std::array<unsigned char, 16>;

/// How ranks of other hosts reach rank 0: what it listens on, and the secrets by which each side knows the other. Rank
/// 0 makes it; it travels through MPI alone.
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
  enum Kind : int64_t { kHere = 1, kLeaves = 2 };

  Secret secret{};
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
class Connection {
 public:
  /// `theirs`: what every frame from the other end has to carry.
  Connection(Descriptor socket, const Secret& theirs);

  int number() const { return socket_.number(); }
  /// Takes what has come; true when a frame is complete, which last() then is.
  bool receive();
  /// False when it cannot be sent now.
  bool send(const Frame& frame);
  /// Sends `farewell` and nothing more.
  void leave(const Frame& farewell);
  void close() { socket_.reset(); }

  /// Whether the other end has ever shown its secret.
  bool is_known() const { return known_; }
  /// None after a farewell.
  Loss loss() const { return loss_; }
  bool is_closed() const { return !socket_.is_open(); }
  const Frame& last() const { return last_; }

 private:
  Descriptor socket_;
  Secret theirs_;
  Frame incoming_, last_;
  size_t received_ = 0;  // bytes of `incoming_`
  bool known_ = false;
  bool left_ = false;
  Loss loss_ = Loss::None;
};

/// 30 s, or MESHTRAIN_SILENCE_LIMIT of the environment, in seconds.
std::chrono::seconds silence_limit();

}  // namespace meshtrain
