// Head and loss, forward and backward, in fp32 on one thread: ours, which never has all logits, and LibTorch's linear
// layer and cross-entropy.
//
//   tools/build release head_loss_benchmark && build/release/benchmarks/head_loss_benchmark
//
// --bytes prints what its operators read and write on a GPU, by tokens a chunk, counted as they are called on the Meta
// device.

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "operator_bytes.h"
#include "tensor_parallel/linear_cross_entropy.h"

namespace meshtrain {
namespace {

constexpr int kRepetitions = 3;
constexpr double kMiB = 1 << 20;

struct Measurement {
  double seconds;
  double mib;  ///< beyond what was there before
};

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Each in turn; the medians.
std::vector<Measurement> measure(const std::vector<std::function<void()>>& actions) {
  HostMemory& memory = HostMemory::counted();
  std::vector<Measurement> all;
  for (const auto& action : actions) {  // warms up, too
    const int64_t before = memory.live();
    memory.restart_peak();
    action();
    all.push_back({0, static_cast<double>(memory.peak() - before) / kMiB});
  }
  std::vector<std::vector<double>> seconds(actions.size());
  for (int i = 0; i < kRepetitions; ++i) {
    for (size_t a = 0; a < actions.size(); ++a) seconds[a].push_back(seconds_of(actions[a]));
  }
  for (size_t a = 0; a < actions.size(); ++a) {
    std::sort(seconds[a].begin(), seconds[a].end());
    all[a].seconds = seconds[a][kRepetitions / 2];
  }
  return all;
}

void row(int64_t tokens, int64_t hidden, int64_t vocab) {
  const at::Tensor x = at::randn({tokens, hidden}).requires_grad_();
  Parameter head = full_parameter("head", {vocab, hidden}, {}, {});
  bind(head, at::randn({vocab * hidden}).mul_(0.02), 0);
  head.tensor.mutable_grad() = at::zeros({vocab, hidden});
  x.mutable_grad() = at::zeros_like(x);
  const at::Tensor labels = at::randint(vocab, {tokens}, at::kLong);
  const auto ours = [&] { linear_cross_entropy(x, head, labels, -100, {}).backward(); };
  const auto theirs = [&] {
    at::cross_entropy_loss(at::linear(x, head.tensor), labels, {}, at::Reduction::Sum).backward();
  };
  const std::vector<Measurement> measured = measure({ours, theirs});
  std::printf("| %d x %d by %d | %.0f | %.3f | %.0f | %.3f | %.0f |\n", static_cast<int>(tokens),
              static_cast<int>(hidden), static_cast<int>(vocab), static_cast<double>(4 * tokens * vocab) / kMiB,
              measured[0].seconds, measured[0].mib, measured[1].seconds, measured[1].mib);
  std::fflush(stdout);
}

/// Forward and backward in pure bf16.
OperatorBytes bytes_of(int64_t tokens, int64_t hidden, int64_t vocab, int64_t chunk_tokens) {
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({tokens, hidden}, meta).requires_grad_();
  Parameter head = full_parameter("head", {vocab, hidden}, {}, meta);
  bind(head, at::empty({vocab * hidden}, meta), 0);
  head.tensor.mutable_grad() = at::empty({vocab, hidden}, meta);
  const at::Tensor labels = at::empty({tokens}, meta.dtype(at::kLong));
  const CountedOperators operators;
  torch::autograd::backward({linear_cross_entropy(x, head, labels, -100, {}, chunk_tokens)}, {});
  return operators.bytes();
}

void print_bytes() {
  constexpr int64_t kTokens = 8192, kHidden = 2048, kElementBytes = 2;
  constexpr double kGiB = 1 << 30;
  std::printf("| vocabulary | tokens a chunk | chunks | logits alive, MiB | read, GiB | written, GiB | both |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const int64_t vocab : {49152, 128256, 151936}) {
    for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
      const int64_t chunk = head_chunk_tokens(device, kTokens, vocab, kElementBytes, 1);
      const OperatorBytes bytes = bytes_of(kTokens, kHidden, vocab, chunk);
      const double read = static_cast<double>(bytes.read) / kGiB, written = static_cast<double>(bytes.written) / kGiB;
      std::printf("| %d | %d | %d | %.0f | %.1f | %.1f | %.1f |\n", static_cast<int>(vocab), static_cast<int>(chunk),
                  static_cast<int>((kTokens + chunk - 1) / chunk),
                  static_cast<double>(chunk * vocab * kElementBytes) / kMiB, read, written, read + written);
    }
  }
}

}  // namespace
}  // namespace meshtrain

int main(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "--bytes") {
    meshtrain::print_bytes();
    return 0;
  }
  meshtrain::HostMemory::counted();
  at::set_num_threads(1);
  std::printf("| tokens x M by V | logits, MiB | ours, s | peak, MiB | LibTorch, s | peak, MiB |\n");
  std::printf("|---|---|---|---|---|---|\n");
  meshtrain::row(1024, 512, 4096);
  meshtrain::row(1024, 576, 49152);
  meshtrain::row(2048, 576, 49152);
}
