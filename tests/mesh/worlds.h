#pragma once

#include "mesh/group.h"

namespace meshtrain::testing {

/// Returns the world over a communicator with messages of at most `piece_bytes`; made once for each size. With a
/// `fan_out` other than 0 a rank contacts that many others at a time, through MPI alone. Collective.
const Group& world_in_pieces(int64_t piece_bytes, int fan_out = 0);

/// Returns a group of the complete world with its own queue. Collective.
Group world_again(const std::string& name);

/// A timer that ends the run with a message after `seconds`, for tests that would hang when they fail.
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
