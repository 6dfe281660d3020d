// Attention of one block on the host beside LibTorch's kernel: GFLOP/s of the pairs that count, forward and backward.
//   attention_benchmark [THREADS]

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "context_parallel/host_attention.h"
#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"

namespace {

using namespace meshtrain;

/// Returns the median of the seconds that calls take.
double seconds_of(const std::function<void()>& call) {
  call();
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  return seconds[4];
}

void measure(at::ScalarType dtype, int64_t queries, int64_t keys, bool causal, int64_t features) {
  constexpr int64_t kBatch = 2, kHeads = 8, kKvHeads = 4;
  const auto made = [&](int64_t heads, int64_t length) {
    return at::randn({kBatch, length, heads, features}).to(dtype).transpose(1, 2);
  };
  const at::Tensor q = made(kHeads, queries), k = made(kKvHeads, keys), v = made(kKvHeads, keys),
                   grad = made(kHeads, queries);
  const double scale = 1 / std::sqrt(static_cast<double>(features));
  const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, std::nullopt, scale);
  const AttentionResult attended{out, lse};
  const double theirs =
      seconds_of([&] { at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, std::nullopt, scale); });
  const double ours = seconds_of([&] { host_attention(q, k, v, causal, scale); });
  const double theirs_backward = seconds_of([&] {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, attended.out, attended.lse, 0.0, causal,
                                                             std::nullopt, scale);
  });
  const double ours_backward = seconds_of([&] { host_attention_backward(grad, q, k, v, attended, causal, scale); });
  const auto count = static_cast<double>(causal ? queries * (queries + 1) / 2 : queries * keys);
  const double product = 2e-9 * static_cast<double>(kBatch * kHeads * features) * count;
  std::printf("| %s | %ld x %ld, %s | %ld | %.0f | %.0f | %.0f | %.0f | %.2f |\n", c10::toString(dtype), queries, keys,
              causal ? "causal" : "all", features, 2 * product / theirs, 2 * product / ours,
              5 * product / theirs_backward, 5 * product / ours_backward,
              (theirs + theirs_backward) / (ours + ours_backward));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  std::printf(
      "| dtype | queries x keys | D | forward: LibTorch | ours | backward: LibTorch | ours | ratio of times |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!has_attention_loops(dtype)) continue;
    for (const int64_t length : {16, 32, 48, 65, 128, 256, 512, 1024, 2048}) measure(dtype, length, length, true, 64);
    measure(dtype, 512, 512, true, 128);
    measure(dtype, 512, 512, false, 64);
    measure(dtype, 512, 2048, false, 64);
  }
}
