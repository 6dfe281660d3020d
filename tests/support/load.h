#pragma once

#include <chrono>
#include <thread>

namespace meshtrain::testing {

/// Returns the time in which this machine, as busy as it was over the last minute, does what takes at most `idle` on an
/// idle one: `idle` times the processes that want a core, for each core; at least `idle`.
std::chrono::duration<double> within(std::chrono::duration<double> idle);

/// Waits until `done()` returns true, but no longer than within(`idle`). Returns what `done()` returned last.
template <class Done>
bool wait_until(const Done& done, std::chrono::seconds idle = std::chrono::seconds(60)) {
  using Clock = std::chrono::steady_clock;
  for (const auto start = Clock::now(); Clock::now() - start < within(idle);) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return done();
}

}  // namespace meshtrain::testing
