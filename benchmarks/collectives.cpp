// Sums over the ranks of one machine: this project's collectives, of ordinary tensors and of windows, and the blocking
// calls of MPI, in turn, in one run.
//
//   tools/build release collectives_benchmark
//   tools/ranks 2 build/release/benchmarks/collectives_benchmark

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <vector>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/backends/mpi/reduce.h"
#include "mesh/device/aten.h"
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

using Action = std::function<void()>;

/// Medians of all, measured in turn.
std::vector<double> medians(const std::vector<Action>& actions) {
  std::vector<std::vector<double>> times(actions.size());
  for (int i = 0; i < 2; ++i) {
    for (const Action& action : actions) action();  // buffers and connections are made
  }
  for (int i = 0; i < kRepetitions; ++i) {
    for (size_t one = 0; one < actions.size(); ++one) times[one].push_back(milliseconds(actions[one]));
  }
  std::vector<double> found;
  for (std::vector<double>& one : times) found.push_back(median(std::move(one)));
  return found;
}

/// Open MPI does not know bf16: the sum is ours, of its own blocking calls.
void sum_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const std::array<const std::byte*, 2> parts{static_cast<std::byte*>(in), static_cast<std::byte*>(inout)};
  static const ReduceKernel kernel = reduce_kernel(at::kBFloat16, Reduce::Sum);
  kernel(parts.data(), 2, static_cast<std::byte*>(inout), *count);
}

class Benchmark {
 public:
  Benchmark() {
    const std::shared_ptr<Backend> backend = mpi_backend();
    std::vector<int64_t> ranks(backend->size());
    std::iota(ranks.begin(), ranks.end(), 0);
    world_ = Group(backend, "world", ranks, "rank " + std::to_string(backend->rank()));
    MPI_Op_create(sum_bf16, 1, &sum_bf16_);
  }

  void run() {
    if (world_.rank() == 0) {
      std::printf("%d ranks, ms, medians of %d\n\n", world_.size(), kRepetitions);
      std::printf(
          "| | | buffer | MPI | ordinary tensors | windows | common | MPI / ordinary | / windows | / common |\n");
      std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
    }
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t kib : {4, 64, 256, 1 << 10, 8 << 10, 64 << 10}) compare(dtype, kib << 10);
    }
  }

 private:
  void compare(at::ScalarType dtype, int64_t bytes) {
    const auto options = at::TensorOptions().dtype(dtype);
    const int64_t numel = bytes / static_cast<int64_t>(c10::elementSize(dtype));
    const int count = static_cast<int>(numel), part = count / world_.size();
    const MPI_Datatype type = dtype == at::kFloat ? MPI_FLOAT : MPI_UINT16_T;
    const MPI_Op op = dtype == at::kFloat ? MPI_SUM : sum_bf16_;
    at::Tensor ordinary = at::ones({numel}, options), shard = at::empty({part}, options);
    at::Tensor window = world_.allocate(numel, options, Placement::Own).tensor;
    at::Tensor common = world_.allocate(numel, options, Placement::Common).tensor;
    const at::Tensor own = common.narrow(0, world_.rank() * part, part);
    void *const data = ordinary.data_ptr(), *const mine = shard.data_ptr();

    const auto row = [&](const char* name, const std::vector<Action>& actions) {
      const std::vector<double> ms = medians(actions);
      if (world_.rank() != 0) return;
      std::printf("| %s | %s | %lld KiB |", name, dtype == at::kFloat ? "fp32" : "bf16",
                  static_cast<long long>(bytes >> 10));
      for (size_t i = 0; i < 4; ++i) i < ms.size() ? std::printf(" %.3f |", ms[i]) : std::printf(" |");
      for (size_t i = 1; i < 4; ++i) i < ms.size() ? std::printf(" %.2f |", ms[0] / ms[i]) : std::printf(" |");
      std::printf("\n");
    };
    row("all-reduce", {[&] { MPI_Allreduce(MPI_IN_PLACE, data, count, type, op, MPI_COMM_WORLD); },
                       [&] { world_.all_reduce(ordinary).wait(); }, [&] { world_.all_reduce(window).wait(); }});
    row("reduce-scatter",
        {[&] { MPI_Reduce_scatter_block(data, mine, part, type, op, MPI_COMM_WORLD); },
         [&] { world_.reduce_scatter(shard, ordinary).wait(); }, [&] { world_.reduce_scatter(shard, window).wait(); }});
    row("all-gather",
        {[&] { MPI_Allgather(mine, part, type, data, part, type, MPI_COMM_WORLD); },
         [&] { world_.all_gather(ordinary, shard).wait(); }, [&] { world_.all_gather(window, shard).wait(); },
         [&] { world_.all_gather(common, own).wait(); }});
  }

  Group world_;
  MPI_Op sum_bf16_ = MPI_OP_NULL;
};

}  // namespace
}  // namespace meshtrain

int main() {
  at::set_num_threads(1);
  meshtrain::Benchmark().run();
}
