// The watch's thread beside a main thread that changes phases.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "runtime/program/watch/phase.h"
#include "runtime/program/watch/stall_limits.h"
#include "runtime/program/watch/watch.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Hosts;
using testing::world;

class WatchThread : public ::testing::TestWithParam<Hosts> {};

TEST_P(WatchThread, LooksWhileThePhaseChanges) {
  if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  const Group& ranks = testing::world_on(GetParam());
  for (int run = 0; run < 2; ++run) {
    const Watch watch(ranks);
    const StallGuard guard([] { return StallLimits{.warning = std::chrono::duration<double>(0.005)}; });
    for (int step = 0; step < 100; ++step) {
      const Phase phase("step " + std::to_string(step));
      const Phase within([step] { return PhaseState{"unit " + std::to_string(step), PhaseKind::Step, step}; });
      set_rank_name(ranks.coordinate_text() + (step % 2 == 0 ? "" : "*"));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ranks.barrier();
  }
  set_rank_name("");
}

TEST_P(WatchThread, IsExcusedWhileItLooks) {
  if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  const Watch watch(testing::world_on(GetParam()));
  world().barrier();
  Watch::excuse();
  world().barrier();
}

INSTANTIATE_TEST_SUITE_P(On, WatchThread, ::testing::Values(Hosts::Found, Hosts::Two),
                         [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace meshtrain
