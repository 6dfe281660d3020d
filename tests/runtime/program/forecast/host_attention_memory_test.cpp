// Attention on the host holds for a moment what its sibling on the Meta device counts.
#include <gtest/gtest.h>

#include "context_parallel/host_attention.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "mesh/device/meta_device.h"
#include "runtime/program/forecast/meta_memory.h"

namespace meshtrain {
namespace {

/// Computes attention forward and backward for tensors made with `options`, and returns the bytes of `memory` at the
/// peaks of both.
template <class Memory>
std::vector<int64_t> peaks(Memory& memory, const at::TensorOptions& options) {
  const auto made = [&](int64_t heads) { return at::zeros({2, 200, heads, 64}, options).transpose(1, 2); };
  const at::Tensor q = made(4), k = made(2), v = made(2), grad = made(4);
  if (!host_attention_takes(q, k, v)) return {};
  const int64_t before = memory.live();
  memory.restart_peak();
  const AttentionResult attended = host_attention(q, k, v, true, 0.1);
  const int64_t forward = memory.peak() - before;
  memory.restart_peak();
  host_attention_backward(grad, q, k, v, attended, true, 0.1);
  return {forward, memory.peak() - before};
}

TEST(HostAttentionMemory, IsWhatTheMetaDeviceCounts) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto on_host = peaks(HostMemory::counted(), at::TensorOptions(dtype));
    if (on_host.empty()) GTEST_SKIP() << "this processor has no such instructions";
    const MetaDeviceGuard host(c10::kCPU);
    MetaMemory memory;
    const auto on_meta = peaks(memory, at::TensorOptions(dtype).device(at::kMeta));
    EXPECT_EQ(on_host, on_meta) << dtype;
    EXPECT_GT(on_host[1], on_host[0]);
  }
}

}  // namespace
}  // namespace meshtrain
