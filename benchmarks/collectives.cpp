// Sums over the ranks of one machine: this project's collectives and the blocking calls of MPI, in turn, in one run.
//
//   tools/build release collectives_benchmark
//   tools/ranks 2 build/release/benchmarks/collectives_benchmark

#include <ATen/ATen.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

#include "mesh/backends/mpi.h"
#include "mesh/group.h"

namespace meshtrain {
namespace {

constexpr int kRepetitions = 15;

double milliseconds(const std::function<void()>& action) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// A row of the table: the medians of both, measured alternately.
void compare(const char* name, int64_t bytes, bool speaks, const std::function<void()>& ours,
             const std::function<void()>& mpi) {
  std::vector<double> our_times, mpi_times;
  for (int i = 0; i < 2; ++i) ours(), mpi();  // buffers and connections are made
  for (int i = 0; i < kRepetitions; ++i) {
    our_times.push_back(milliseconds(ours));
    mpi_times.push_back(milliseconds(mpi));
  }
  const double a = median(our_times), b = median(mpi_times);
  if (speaks)
    std::printf("| %s | %lld KiB | %.3f | %.3f | %.2f |\n", name, static_cast<long long>(bytes >> 10), a, b, b / a);
}

void run() {
  const std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks(backend->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const Group world(backend, "world", ranks, "rank " + std::to_string(backend->rank()));
  const bool speaks = world.rank() == 0;
  if (speaks) {
    std::printf("%d ranks, fp32, medians of %d\n\n", world.size(), kRepetitions);
    std::printf("| | buffer | ours, ms | MPI, ms | MPI / ours |\n|---|---|---|---|---|\n");
  }
  for (int64_t bytes : {int64_t{64} << 10, int64_t{1} << 20, int64_t{8} << 20, int64_t{64} << 20}) {
    const int64_t numel = bytes / 4;
    at::Tensor buffer = at::ones({numel}), shard = at::empty({numel / world.size()});
    const int count = static_cast<int>(numel), part = static_cast<int>(shard.numel());
    float *data = buffer.data_ptr<float>(), *own = shard.data_ptr<float>();
    compare(
        "all-reduce", bytes, speaks, [&] { world.all_reduce(buffer).wait(); },
        [&] { MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    compare(
        "reduce-scatter", bytes, speaks, [&] { world.reduce_scatter(shard, buffer).wait(); },
        [&] { MPI_Reduce_scatter_block(data, own, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
    compare(
        "all-gather", bytes, speaks, [&] { world.all_gather(buffer, shard).wait(); },
        [&] { MPI_Allgather(own, part, MPI_FLOAT, data, part, MPI_FLOAT, MPI_COMM_WORLD); });
  }
}

}  // namespace
}  // namespace meshtrain

int main() {
  at::set_num_threads(1);
  meshtrain::run();
}
