// Attention over several ranks for samples that are divided into documents, on the emulated GPU, against its
// definition.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "context_parallel/attention.h"
#include "context_parallel/choice.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/packed_attention.h"
#include "mesh/device/aten.h"
#include "mesh/staged.h"
#include "runtime/training/model/operators/rope.h"
#include "tests/context_parallel/reference.h"
#include "tests/gpu/kernel_counter.h"
#include "tests/gpu/reference.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr double kRanksScale = 0.35;
constexpr int64_t kLength = 640, kHeadDim = 8;  // 80 positions in the chunks of four zig-zag ranks
constexpr char kForward[] = "_flash_attention_forward", kBackward[] = "_flash_attention_backward";

const Documents kOne = {{1, 3, 40, 580, 581}};  // of 1, 2, 37, 540, 1 and 59 tokens
const Documents kSame = {{80, 340}, {80, 340}};
const Documents kOwn = {{1, 3, 40, 580, 581}, {}, {5, 599, 639}};  // the second is one document

struct PackedCase {
  ContextAlgorithm algorithm;
  SequenceLayout::Kind kind;
  Documents documents;
  DtypeTolerance precision;
  int64_t num_kv_heads = 2;
  int64_t num_heads = 4;
};

const Group& device_world() {
  static const Group group(staged(world().backend()), "device", world().ranks(), world().coordinate_text());
  return group;
}

/// Calls `check` with every algorithm and layout.
template <class Check>
void for_all(const Check& check) {
  using enum ContextAlgorithm;
  for (const ContextAlgorithm algorithm : {Ring, AllGather, Ulysses}) {
    for (const auto kind : {SequenceLayout::Kind::Contiguous, SequenceLayout::Kind::ZigZag}) {
      SCOPED_TRACE(::testing::Message() << name(algorithm) << ", " << name(kind));
      check(algorithm, kind);
    }
  }
}

/// Returns the largest number of calls in one direction: two for the keys of each rank.
int64_t most_calls(ContextAlgorithm algorithm) {
  const int ranks = world().size();
  if (ranks == 1 || algorithm == ContextAlgorithm::Ulysses) return 1;
  return algorithm == ContextAlgorithm::Ring ? 2 * ranks : 2;
}

void expect_definition(const PackedCase& c) {
  const int64_t batch = static_cast<int64_t>(c.documents.size()), all_heads = c.num_heads + 2 * c.num_kv_heads;
  const SequenceLayout layout =
      SequenceLayout(c.kind, kLength, world().size(), world().rank()).with_documents(c.documents);
  const at::Tensor fused = random_tensor({batch, kLength, all_heads, kHeadDim}, 1, c.precision.dtype);
  const at::Tensor grad = random_tensor({batch, kLength, c.num_heads, kHeadDim}, 2, c.precision.dtype);

  const at::Tensor full = fused.to(at::kDouble).set_requires_grad(true);
  const Heads heads = split_heads(full, c.num_heads, c.num_kv_heads);
  const at::Tensor expected = dense_attention(heads.q, heads.k, heads.v, c.documents, {kRanksScale}).transpose(1, 2);
  expected.backward(grad.to(at::kDouble));

  const KernelCounter calls;
  const at::Tensor local = layout.take(fused, 1).to(gpu()).detach().set_requires_grad(true);
  const Heads parts = split_heads(local, c.num_heads, c.num_kv_heads);
  const at::Tensor found =
      attention(parts.q, parts.k, parts.v, layout, device_world(), c.algorithm, {kRanksScale}).transpose(1, 2);
  found.backward(layout.take(grad, 1).to(gpu()));

  EXPECT_EQ(calls.cudnn(), 0);
  const bool packed = c.precision.dtype != at::kFloat;
  for (const char* kernel : {kForward, kBackward}) {
    EXPECT_LE(calls.count(kernel), packed ? most_calls(c.algorithm) : 0) << kernel;
    EXPECT_GE(calls.count(kernel), packed) << kernel;
  }
  EXPECT_TRUE(!packed || calls.all() == calls.count(kForward) + calls.count(kBackward)) << "of another kernel";

  EXPECT_EQ(found.scalar_type(), c.precision.dtype);
  EXPECT_TRUE(found.is_contiguous()) << "the caller's transpose to [B, s, H, D] is free";
  EXPECT_LE(error_of(found, layout.take(expected, 1)), c.precision.tolerance);
  const std::vector<int64_t> sizes = {c.num_heads, c.num_kv_heads, c.num_kv_heads};
  const std::vector<at::Tensor> have = local.grad().split_with_sizes(sizes, 2);
  const std::vector<at::Tensor> want = layout.take(full.grad(), 1).split_with_sizes(sizes, 2);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_LE(error_of(have[i], want[i]), c.precision.tolerance) << "gradient of "
                                                                 << "qkv"[i];
  }
}

TEST(PackedAttention, StaysInsideDocuments) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    for (const DtypeTolerance& precision :
         std::vector<DtypeTolerance>{{at::kFloat, 1e-5}, {at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}}) {
      SCOPED_TRACE(precision.dtype);
      expect_definition({algorithm, kind, kOne, precision});
    }
  });
}

TEST(PackedAttention, RowsHaveDocumentsOfTheirOwn) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    expect_definition({algorithm, kind, kSame, {at::kHalf, 2e-3}, /*num_kv_heads=*/4});
    expect_definition({algorithm, kind, kOwn, {at::kBFloat16, 1e-2}, /*num_kv_heads=*/1});
  });
}

// The lengths of a micro-batch are copied to the GPU once, not for each layer and direction.
TEST(PackedAttention, LayersShareTheirCalls) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const SequenceLayout layout = SequenceLayout(kind, kLength, world().size(), world().rank()).with_documents(kOne);
    const at::Tensor x = layout.take(random_tensor({1, kLength, 4, kHeadDim}, 1, at::kHalf), 1).to(gpu());
    const at::Tensor q = x.transpose(1, 2).set_requires_grad(true);
    const auto layer = [&] {
      const at::Tensor out = attention(q, q, q, layout, device_world(), algorithm, {kRanksScale});
      out.backward(at::ones_like(out));
    };
    const auto uploads = [&] {
      const KernelCounter calls;
      layer();
      return calls.count("pin_memory");
    };
    EXPECT_GT(uploads(), 0);
    EXPECT_EQ(uploads(), 0);
  });
}

// The host would wait for copies of pageable memory.
TEST(PackedAttention, DocumentsTravelThroughPinnedMemory) {
  const at::Tensor ones = at::ones({kLength, 1, kHeadDim / 2}, gpu());
  const Rotary angles{ones, ones};
  const SequenceLayout layout = SequenceLayout::unsharded(kLength).with_documents(kOne);
  const KernelCounter calls;
  hop_calls(layout, 1, /*source=*/0, {.packing = gpu()});
  EXPECT_EQ(calls.count("pin_memory"), 1);
  angles.select(at::arange(kLength).unsqueeze(0));
  EXPECT_EQ(calls.count("pin_memory"), 2);
}

TEST(PackedAttention, IsDifferentiableOnce) {
  for_all([](ContextAlgorithm algorithm, SequenceLayout::Kind kind) {
    const SequenceLayout layout = SequenceLayout(kind, kLength, world().size(), world().rank()).with_documents(kOne);
    const at::Tensor x = layout.take(random_tensor({1, kLength, 4, kHeadDim}, 1, at::kHalf), 1).to(gpu());
    const at::Tensor q = x.transpose(1, 2).set_requires_grad(true);
    const at::Tensor out = attention(q, q, q, layout, device_world(), algorithm, {kRanksScale});
    const auto second = [&] {
      const at::Tensor first = torch::autograd::grad({out.pow(2).sum()}, {q}, {}, true, /*create_graph=*/true)[0];
      first.sum().backward();
    };
    EXPECT_THROW(second(), std::exception) << "a second derivative must not be silently wrong";
  });
}

/// Returns the emulation's error for q, k and v of [6, 2, 8] in two sequences; empty without one.
std::string refusal(const at::Tensor& q, const at::Tensor& ends_q, const at::Tensor& ends_k, int64_t longest = 4) {
  try {
    attend_packed(q, q, q, {ends_q, ends_k, longest, longest}, true, {kRanksScale});
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(EmulatedFlash, RefusesWhatLibTorchLeavesUnchecked) {
  const at::Tensor ends = at::tensor({0, 2, 6}, at::kInt).to(gpu());
  const auto made = [](at::IntArrayRef shape, at::ScalarType dtype) { return fresh(shape).to(dtype).to(gpu()); };
  const at::Tensor q = made({6, 2, 8}, at::kHalf);
  EXPECT_EQ(refusal(q, ends, ends), "");
  const auto expect = [](const std::string& complaint, const std::string& part) {
    EXPECT_NE(complaint.find(part), std::string::npos) << complaint;
  };
  expect(refusal(q.to(at::kFloat), ends, ends), "only supports fp16 and bf16");
  expect(refusal(q, ends.to(at::kLong), ends), "dtype int32");
  expect(refusal(q.unsqueeze(0), ends, ends), "[1, 6, 2, 8]");
  expect(refusal(made({6, 2, 9}, at::kHalf).narrow(2, 0, 8), ends, ends), "16 bytes at once");
  expect(refusal(q, ends, ends, /*longest=*/0), "longest 2 and 0");
}

// Results that CUDA does not write are NaN.
TEST(EmulatedFlash, WhatLengthsLeaveOutIsNoNumber) {
  const at::Tensor q = fresh({6, 2, 8}).to(at::kHalf).to(gpu());
  const auto out = [&](std::vector<int> ends, int64_t longest) {
    const at::Tensor bounds = at::tensor(ends, at::kInt).to(gpu());
    return attend_packed(q, q, q, {bounds, bounds, longest, longest}, true, {kRanksScale}).out.to(at::kCPU).isnan();
  };
  EXPECT_FALSE(out({0, 2, 6}, 4).any().item<bool>());
  EXPECT_TRUE(out({0, 2, 5}, 4)[5].all().item<bool>()) << "after the last";
  EXPECT_TRUE(out({0, 2, 6}, 3)[5].all().item<bool>()) << "longer than the longest";
}

}  // namespace
}  // namespace meshtrain::testing
