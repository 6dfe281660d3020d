#include "tests/mesh/worlds.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "mesh/backends/mpi/mpi.h"
#include "tests/support/world.h"

namespace meshtrain::testing {

const Group& world_in_pieces(int64_t piece_bytes, int fan_out) {
  static std::map<std::pair<int64_t, int>, Group> worlds;
  const std::pair key{piece_bytes, fan_out};
  const auto found = worlds.find(key);
  if (found != worlds.end()) return found->second;
  if (world().size() == 1) return worlds.emplace(key, world()).first->second;
  MpiOptions options{.piece_bytes = piece_bytes};
  if (fan_out != 0) options.fan_out = fan_out, options.window_bytes = 0;
  return worlds.emplace(key, Group(mpi_backend(options), "pieces", world().ranks(), world().coordinate_text()))
      .first->second;
}

Group world_again(const std::string& name) {
  std::vector<int> everyone(static_cast<size_t>(world().size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return world().split(everyone, name);
}

struct Watchdog::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::thread thread;
};

Watchdog::Watchdog(int seconds) : state_(std::make_shared<State>()) {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string coordinate = world().coordinate_text();
  state_->thread = std::thread([state = state_.get(), seconds, test, coordinate] {
    std::unique_lock lock(state->mutex);
    if (state->ended.wait_for(lock, std::chrono::seconds(seconds), [&] { return state->done; })) return;
    std::fprintf(stderr, "%s: %s still hangs after %d s\n", coordinate.c_str(), test.c_str(), seconds);
    abort_mpi(1);
  });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->done = true;
  }
  state_->ended.notify_one();
  state_->thread.join();
}

}  // namespace meshtrain::testing
