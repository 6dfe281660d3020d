// Attention with windows beside attention without: forward and backward of 65,536 tokens in one sequence, and as
// sequences of 8,192, where a query sees 4,096 keys on average.
//
//   tools/build release window_benchmark
//   tools/ranks 4 build/release/benchmarks/window_benchmark

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "context_parallel/choice.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 65536, kHeads = 2, kKeyValueHeads = 1, kHeadDim = 64;
constexpr int kRepetitions = 5;

struct Row {
  const char* name;
  int64_t length, window;
  int repetitions;
  std::vector<double> seconds = {};
  int64_t sent = 0;
};

Group world_group() {
  std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks;
  for (int rank = 0; rank < backend->size(); ++rank) ranks.push_back(rank);
  return Group(backend, "world", std::move(ranks), "rank " + std::to_string(backend->rank()));
}

/// Seconds of one forward and backward, of the slowest rank.
double attend(const Row& row, const Group& group) {
  const ContextShape shape{row.length, kHeads, kKeyValueHeads, group.size(), row.window};
  const ContextChoice choice = choose_context(shape, {}, {});
  const SequenceLayout layout(choice.layout, row.length, group.size(), group.rank());
  const auto heads = [&](int64_t count) {
    return at::randn({kTokens / row.length, layout.local_length(), count, kHeadDim}).set_requires_grad(true);
  };
  const at::Tensor q = heads(kHeads), k = heads(kKeyValueHeads), v = heads(kKeyValueHeads);
  const at::Tensor gradient = at::randn(q.sizes()).transpose(1, 2);
  group.barrier();
  const Clock::time_point start = Clock::now();
  attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout, group, choice.algorithm,
            {0.125, row.window})
      .backward(gradient);
  group.barrier();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run() {
  const Group world = world_group();
  const DeviceMesh mesh(MeshLayout({{"cp", world.size()}}), world);
  std::vector<Row> rows = {{"sequences of 8,192, all keys before", 8192, 0, kRepetitions},
                           {"one sequence, window of 4,096", kTokens, 4096, kRepetitions},
                           {"one sequence, window of 64", kTokens, 64, kRepetitions},
                           {"one sequence, window of 512", kTokens, 512, kRepetitions},
                           {"one sequence, window of 32,768", kTokens, 32768, 1},
                           {"one sequence, all keys before", kTokens, 0, 1}};
  for (int i = 0; i < kRepetitions; ++i) {
    for (Row& row : rows) {
      if (i >= row.repetitions) continue;
      mesh.traffic().clear();
      row.seconds.push_back(attend(row, mesh.group("cp")));
      at::Tensor sent = at::tensor({mesh.traffic().total("cp", "cp.attention").sent_bytes}, at::kLong);
      world.all_reduce(sent, Reduce::Max).wait();
      row.sent = sent.item<int64_t>();
    }
  }
  if (world.rank() != 0) return;
  std::printf("%d ranks, 65,536 tokens, fp32, %d heads, %d KV head of %d; best of %d\n\n", world.size(),
              static_cast<int>(kHeads), static_cast<int>(kKeyValueHeads), static_cast<int>(kHeadDim), kRepetitions);
  std::printf("| | s | median ratio | MiB that a rank sends, at most |\n|---|---|---|---|\n");
  for (const Row& row : rows) {
    std::vector<double> ratios;
    for (size_t i = 0; i < row.seconds.size(); ++i) ratios.push_back(row.seconds[i] / rows[0].seconds[i]);
    std::ranges::sort(ratios);
    std::printf("| %s | %.2f | %.2f | %.1f |\n", row.name, *std::ranges::min_element(row.seconds),
                ratios[ratios.size() / 2], static_cast<double>(row.sent) / (1 << 20));
  }
}

}  // namespace
}  // namespace meshtrain

int main() {
  at::set_num_threads(1);
  meshtrain::run();
}
