#pragma once

#include "mesh/group.h"

namespace meshtrain::testing {

/// The world over a communicator whose messages are at most `piece_bytes` long; made once for each size. With a
/// `fan_out` other than 0 a rank talks to so many others at a time, through MPI alone. Collective.
const Group& world_in_pieces(int64_t piece_bytes, int fan_out = 0);

/// A group of the whole world with a queue of its own. Collective.
Group world_again(const std::string& name);

/// Ends the run with a message if it is still alive after `seconds`: for tests that would hang when they fail.
class Watchdog {
 public:
  explicit Watchdog(int seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace meshtrain::testing
