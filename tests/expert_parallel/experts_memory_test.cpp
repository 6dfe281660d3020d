// A layer of experts allocates on the Meta device what it allocates on the host, and keeps only what it must.
#include <gtest/gtest.h>

#include "mesh/device/half_precision.h"
#include "mesh/device/memory.h"
#include "mesh/device/meta_device.h"
#include "runtime/program/forecast/meta_memory.h"
#include "tests/expert_parallel/naive.h"

namespace meshtrain::testing {
namespace {

struct LayerBytes {
  int64_t kept, forward, backward;  // after the forward, and at the peaks
};

constexpr double kNumberBytes = 64;  // of numbers that operators make tensors of, on the host for the Meta device too

constexpr int64_t kRows = 512, kWidth = 96, kFeatures = 64, kManyExperts = 8, kTwoSlots = 2;
constexpr double kOperandBytes = 4.0 * kRows * kTwoSlots / kManyExperts * kWidth;

/// Runs a layer whose experts have equally many rows, with gradient buffers for its weights.
template <class Memory>
LayerBytes layer_bytes(Memory& memory, const at::TensorOptions& options, bool clamped, bool recompute) {
  const auto leaf = [&](at::IntArrayRef shape) {
    at::Tensor made = at::zeros(shape, options).requires_grad_();
    made.mutable_grad() = at::zeros(shape, options);
    return made;
  };
  const at::Tensor x = at::zeros({kRows, kWidth}, options).requires_grad_();
  const at::Tensor weights = at::zeros({kRows, kTwoSlots}, options.dtype(at::kFloat)).requires_grad_();
  ExpertWeights experts{leaf({kManyExperts, 2 * kFeatures, kWidth}), leaf({kManyExperts, kWidth, kFeatures}), {}, {}};
  if (clamped) {
    experts.gate_up_bias = leaf({kManyExperts, 2 * kFeatures});
    experts.down_bias = leaf({kManyExperts, kWidth});
  }
  const GatedActivation activation =
      clamped ? clamped_activation(1.702, 7, GateLayout::Interleaved) : silu_activation();
  const at::Tensor dy = at::zeros({kRows, kWidth}, options);
  const at::Tensor choices =
      at::arange(kRows * kTwoSlots, options.dtype(at::kLong)).remainder(kManyExperts).view({kRows, kTwoSlots});
  LayerBytes bytes{};
  for (int times = 0; times < 2; ++times) {  // the first measures the products' scratch
    x.mutable_grad().reset();
    weights.mutable_grad().reset();
    const int64_t before = memory.live();
    memory.restart_peak();
    const at::Tensor y = mixture(x, weights, sort_by_expert(choices, kManyExperts), experts, activation, recompute);
    bytes.forward = memory.peak() - before;
    bytes.kept = memory.live() - before;
    memory.restart_peak();
    y.backward(dy);
    bytes.backward = memory.peak() - before;
  }
  return bytes;
}

TEST(ExpertsMemory, IsWhatTheMetaDeviceCounts) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool clamped : {false, true}) {
      for (const bool recompute : {false, true}) {
        const LayerBytes on_host = layer_bytes(HostMemory::counted(), at::TensorOptions(dtype), clamped, recompute);
        const MetaDeviceGuard host(c10::kCPU);
        MetaMemory memory;
        const auto on_meta = layer_bytes(memory, at::TensorOptions(dtype).device(at::kMeta), clamped, recompute);
        SCOPED_TRACE(::testing::Message() << dtype << " clamped " << clamped << " recompute " << recompute);
        EXPECT_EQ(on_host.kept, on_meta.kept);
        // Halves that are multiplied in fp32 may need another copy of an expert's operand on the host.
        const double allowed = kNumberBytes + (multiplied_in_fp32(at::empty({0}, dtype)) ? kOperandBytes : 0);
        EXPECT_NEAR(on_host.forward, on_meta.forward, allowed);
        EXPECT_NEAR(on_host.backward, on_meta.backward, allowed);
      }
    }
  }
}

TEST(ExpertsMemory, IsThatOfTheFirstProductAndOfTheActivation) {
  constexpr int64_t kPairs = kRows * kTwoSlots, kElement = 4;
  constexpr int64_t kResult = kRows * kWidth * kElement, kGateUp = kPairs * 2 * kFeatures * kElement;
  constexpr int64_t kNumbers = 3 * kPairs * 8 + kManyExperts * 8 + kPairs * kElement;  // of rows, and their weights
  for (const bool recompute : {false, true}) {
    const int64_t hidden = recompute ? 0 : kPairs * kFeatures * kElement;
    const int64_t kept = layer_bytes(HostMemory::counted(), at::TensorOptions(at::kFloat), false, recompute).kept;
    EXPECT_EQ(kept, kResult + kGateUp + hidden + kNumbers);
  }
}

}  // namespace
}  // namespace meshtrain::testing
