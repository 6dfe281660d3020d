// What a large group's short calls take, and how many messages and bytes they send, by way of MPI alone.
//   MESHTRAIN_WINDOW_MIB=0 tools/ranks N build/release/benchmarks/vote_benchmark
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/group.h"

namespace {

using Clock = std::chrono::steady_clock;

template <typename Call>
double median_ms(const meshtrain::Group& world, Call call) {
  constexpr int kRounds = 31;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    world.barrier();
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[kRounds / 2];
}

}  // namespace

int main() {
  const auto begin = Clock::now();
  const auto backend = meshtrain::mpi_backend();
  const double connect = std::chrono::duration<double>(Clock::now() - begin).count();
  std::vector<int64_t> ranks(static_cast<size_t>(backend->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const meshtrain::Group world(backend, "world", ranks, "rank " + std::to_string(backend->rank()));
  const int64_t n = world.size();

  at::Tensor vote = at::ones({5}, at::kDouble), number = at::ones({1}, at::kLong);
  at::Tensor large = at::ones({1 << 20}, at::kFloat);
  at::Tensor shard = at::ones({(1 << 20) / n}, at::kFloat), full = at::ones({shard.numel() * n}, at::kFloat);
  const double voted = median_ms(world, [&] { world.all_reduce(vote).wait(); });
  const double gathered = median_ms(world, [&] {
    at::Tensor numbers = at::empty({n}, at::kLong);
    world.all_gather(numbers, number).wait();
  });
  const double reduced = median_ms(world, [&] { world.all_reduce(large).wait(); });
  const double scattered = median_ms(world, [&] { world.reduce_scatter(shard, full).wait(); });
  if (world.rank() == 0) {
    std::printf("| %d | %.2f | %.2f | %.2f | %.1f | %.1f |\n", static_cast<int>(n), connect, voted, gathered, reduced,
                scattered);
  }
  return 0;
}
