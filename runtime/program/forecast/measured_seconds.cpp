#include "runtime/program/forecast/measured_seconds.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "mesh/base/cgroup.h"
#include "mesh/device/aten.h"
#include "mesh/host_map.h"

namespace meshtrain {

double largest_of(const Group& world, double value) {
  at::Tensor largest = at::full({1}, value, at::kDouble);
  world.all_reduce(largest, Reduce::Max).wait();
  return largest.item<double>();
}

double mean_of(const Group& world, double value) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  world.all_reduce(sum).wait();
  return sum.item<double>() / world.size();
}

double least_of(const Group& world, double value) {
  return -largest_of(world, -value);
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsOfBatch = 0.01;
constexpr double kMostRuns = 50;
constexpr size_t kBatches = 5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Returns true, on all ranks, when a host has more of the world's ranks than cores. Every rank must call it.
bool ranks_take_turns(const Group& world) {
  const int ranks = world.size() / HostMap::of(world).num_hosts();
  const auto quota = Cgroups().processors();
  const double cores = std::min<double>(std::thread::hardware_concurrency(), quota ? quota->processors : 1e9);
  return largest_of(world, ranks > cores ? 1 : 0) > 0;
}

}  // namespace

double seconds_of(const Group& world, const std::function<void()>& run, int warm_up, std::vector<double>* spreads) {
  const bool takes_turns = ranks_take_turns(world);
  const auto batch = [&](int count) {
    world.barrier();
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < count; ++i) run();
    if (takes_turns) world.barrier();
    const double seconds = seconds_since(begin) / count;
    return takes_turns ? largest_of(world, seconds) : mean_of(world, seconds);
  };
  for (int i = 0; i < warm_up; ++i) run();
  const double once = batch(1);
  const auto count = static_cast<int>(std::clamp(kSecondsOfBatch / once, 1.0, kMostRuns));
  std::vector<double> seconds(kBatches);
  for (double& each : seconds) each = batch(count);
  std::ranges::sort(seconds);
  const double median = seconds[kBatches / 2];
  if (spreads != nullptr && median > 0) spreads->push_back((seconds[kBatches - 2] - seconds[1]) / median);
  return median;
}

}  // namespace meshtrain
