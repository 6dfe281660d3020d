// The cost of attention: kernel calls, copies and communication.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <numeric>

#include "context_parallel/attention.h"
#include "context_parallel/choice.h"
#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/context_parallel/reference.h"
#include "tests/context_parallel/score_counter.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::kAlgorithms;
using testing::kZigZag;
using testing::random_tensor;
using testing::split_heads;
using testing::world;

/// A counter for calls of kernels and of operators that move data, while this object lives.
class OperatorCounter {
 public:
  OperatorCounter() {
    attention_calls = copies = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounter() { at::removeCallback(handle_); }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  static inline std::atomic<int> attention_calls = 0;
  static inline std::atomic<int> copies = 0;

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    const std::string name = function.name();
    const bool attends = name.starts_with("aten::_scaled_dot_product") || name.starts_with("meshtrain::host_attention");
    if (attends) ++attention_calls;
    if (name == "aten::copy_" || name == "aten::cat" || name == "aten::clone" || name == "aten::add_") ++copies;
    return nullptr;
  }

  at::CallbackHandle handle_;
};

at::Tensor run(const at::Tensor& fused, const SequenceLayout& layout, const Group& group,
               ContextAlgorithm algorithm = ContextAlgorithm::Ring, int64_t num_heads = 4, int64_t window = 0) {
  const testing::Heads heads = split_heads(fused, num_heads, (fused.size(2) - num_heads) / 2);
  return attention(heads.q, heads.k, heads.v, layout, group, algorithm, {0.25, window});
}

TEST(AttentionCost, OneRankIsOneKernelCallEachWay) {
  const testing::Heads leaves = split_heads(random_tensor({3, 10, 8, 8}, 1), 4, 2);
  for (const at::Tensor& leaf : {leaves.q, leaves.k, leaves.v}) leaf.set_requires_grad(true);
  const at::Tensor grad = random_tensor({3, 10, 4, 8}, 2).transpose(1, 2);
  at::Tensor out;
  {
    const OperatorCounter counter;
    out =
        attention(leaves.q, leaves.k, leaves.v, SequenceLayout::unsharded(10), Group(), ContextAlgorithm::Ring, {0.25});
    EXPECT_EQ(counter.attention_calls, 1);
    EXPECT_EQ(counter.copies, 0);
  }
  const OperatorCounter counter;
  torch::autograd::grad({out}, {leaves.q, leaves.k, leaves.v}, {grad});
  EXPECT_EQ(counter.attention_calls, 1);
  EXPECT_EQ(counter.copies, 0);
}

TEST(AttentionCost, SequencesWithEqualDocumentsShareKernelCalls) {
  const at::Tensor fused = random_tensor({4, 10, 8, 8}, 1);
  const SequenceLayout layout = SequenceLayout::unsharded(10);
  {
    const OperatorCounter counter;
    run(fused, layout.with_documents({{5}, {5}, {5}, {5}}), Group());
    EXPECT_EQ(counter.attention_calls, 2);
  }
  const OperatorCounter counter;
  run(fused, layout.with_documents({{5}, {4}, {5}, {}}), Group());
  EXPECT_EQ(counter.attention_calls, 7);
}

/// The bytes that a rank sends and its calls in a group of c ranks (AttentionBytes, context_parallel/choice.h).
struct Expected {
  int64_t forward, backward;
  int64_t calls_forward, calls_backward;
};

Expected expected_traffic(ContextAlgorithm algorithm, int64_t c, int64_t b, int64_t s, int64_t heads, int64_t kv_heads,
                          int64_t head_dim, int64_t e, int64_t w) {
  if (c == 1) return {0, 0, 0, 0};
  const int64_t key_values = 2 * b * s * kv_heads * head_dim, queries = 2 * b * s * heads * head_dim;
  int64_t repeats = 1;  // the smallest number for which c divides the KV heads
  while (kv_heads * repeats % c != 0) ++repeats;
  switch (algorithm) {
    case ContextAlgorithm::Ring:
      return {(c - 1) * key_values * e, (c - 1) * key_values * (e + w), c - 1, 2 * (c - 1)};
    case ContextAlgorithm::AllGather:
      return {(c - 1) * key_values * e, (c - 1) * key_values * (e + w), 1, 2};
    case ContextAlgorithm::Ulysses:
      return {(c - 1) * (queries + repeats * key_values) * e / c,
              (c - 1) * (queries * e + repeats * key_values * (repeats > 1 ? w : e)) / c, 2, repeats > 1 ? 3 : 2};
  }
  return {};
}

TEST(AttentionCost, WhatTravelsIsWhatTheFormulasSay) {
  const int ranks = world().size();
  const DeviceMesh mesh(MeshLayout({{"cp", ranks}}), world());
  const int64_t b = 3, s = 12, head_dim = 8;
  for (const ContextAlgorithm algorithm : kAlgorithms) {
    for (const auto kind : {kZigZag, SequenceLayout::Kind::Contiguous}) {
      const SequenceLayout layout(kind, s * ranks, ranks, world().rank());
      for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {4, 2}, {4, 1}, {12, 3}}) {
        for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
          SCOPED_TRACE(::testing::Message()
                       << name(algorithm) << ", heads " << heads << ", KV heads " << kv_heads << ", " << dtype);
          const int64_t e = static_cast<int64_t>(c10::elementSize(dtype)), w = std::max<int64_t>(e, 4);
          const at::Tensor full = random_tensor({b, s * ranks, heads + 2 * kv_heads, head_dim}, 1, dtype);
          const at::Tensor local = layout.take(full, 1).clone().set_requires_grad(true);
          const Expected expected = expected_traffic(algorithm, ranks, b, s, heads, kv_heads, head_dim, e, w);
          const auto total = [&] { return mesh.traffic().total("cp", "cp.attention"); };

          mesh.traffic().clear();
          const at::Tensor out = run(local, layout, mesh.group("cp"), algorithm, heads);
          EXPECT_EQ(total().sent_bytes, expected.forward);
          EXPECT_EQ(total().calls, expected.calls_forward);

          mesh.traffic().clear();
          out.backward(at::ones_like(out));
          EXPECT_EQ(total().sent_bytes, expected.backward);
          EXPECT_EQ(total().calls, expected.calls_backward);

          const ContextShape shape{s * ranks, heads, kv_heads, ranks};  // printed by `meshtrain mesh`
          const AttentionBytes bytes = attention_bytes(shape, algorithm, b, head_dim, e, w);
          EXPECT_EQ(bytes.forward, expected.forward);
          EXPECT_EQ(bytes.backward, expected.backward);
        }
      }
    }
  }
}

/// Returns the number of positions of a rank that each other rank's queries see inside the window, summed over ranks.
int64_t positions_seen_elsewhere(const SequenceLayout& layout, int64_t window) {
  int64_t sum = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    if (rank == layout.rank()) continue;
    const SequenceLayout other(layout.kind(), layout.sequence_length(), layout.ranks(), rank);
    const at::Tensor seen =
        testing::visible({}, layout.sequence_length(), window).index_select(0, other.positions()).sum(0).gt(0);
    sum += seen.index_select(0, layout.positions()).sum().item<int64_t>();
  }
  return sum;
}

TEST(AttentionCost, AWindowSendsTheKeysInsideIt) {
  const int ranks = world().size();
  const DeviceMesh mesh(MeshLayout({{"cp", ranks}}), world());
  const int64_t b = 3, s = 12, head_dim = 8, heads = 4, kv_heads = 2;
  for (const ContextAlgorithm algorithm : {ContextAlgorithm::Ring, ContextAlgorithm::AllGather}) {
    for (const auto kind : {kZigZag, SequenceLayout::Kind::Contiguous}) {
      const SequenceLayout layout(kind, s * ranks, ranks, world().rank());
      for (const int64_t window : {1, 2, 6, 7, 12, 13, 14, 30}) {
        if (window >= s * ranks) continue;
        for (const at::ScalarType dtype : {at::kBFloat16, at::kDouble}) {
          SCOPED_TRACE(::testing::Message() << name(algorithm) << ", " << name(kind) << ", window " << window);
          const int64_t e = static_cast<int64_t>(c10::elementSize(dtype)), w = std::max<int64_t>(e, 4);
          const int64_t sent = positions_seen_elsewhere(layout, window) * 2 * b * kv_heads * head_dim;
          const auto total = [&] { return mesh.traffic().total("cp", "cp.attention"); };
          const at::Tensor full = random_tensor({b, s * ranks, heads + 2 * kv_heads, head_dim}, 1, dtype);
          const at::Tensor local = layout.take(full, 1).clone().set_requires_grad(true);

          mesh.traffic().clear();
          const at::Tensor out = run(local, layout, mesh.group("cp"), algorithm, heads, window);
          EXPECT_EQ(total().sent_bytes, sent * e);
          const int64_t hops = (window - 1 + s - 1) / s;  // of contiguous parts
          const bool at_once = algorithm == ContextAlgorithm::AllGather;
          if (kind != kZigZag) {
            EXPECT_EQ(total().calls, std::min<int64_t>(hops, at_once && ranks > 1 ? 1 : ranks - 1));
          } else if (window > 1 && window <= 7) {  // both neighbours
            EXPECT_EQ(total().calls, at_once || ranks == 2 ? ranks > 1 : ranks == 1 ? 0 : 2);
          }
          const int64_t calls = total().calls;
          at::Tensor most = at::tensor({total().sent_bytes, int64_t{0}}, at::kLong);

          mesh.traffic().clear();
          out.backward(at::ones_like(out));
          // Gradients return from where keys were received, so only the sums over ranks are equal.
          at::Tensor sums = at::tensor({total().sent_bytes, sent * (e + w)}, at::kLong);
          world().all_reduce(sums).wait();
          EXPECT_EQ(sums[0].item<int64_t>(), sums[1].item<int64_t>());
          EXPECT_EQ(total().calls, 2 * calls);
          if (kind == kZigZag) continue;
          most[1] = total().sent_bytes;
          world().all_reduce(most, Reduce::Max).wait();
          const AttentionBytes bytes =
              attention_bytes({s * ranks, heads, kv_heads, ranks, window}, algorithm, b, head_dim, e, w);
          EXPECT_EQ(bytes.forward, most[0].item<int64_t>());
          EXPECT_EQ(bytes.backward, most[1].item<int64_t>());
        }
      }
    }
  }
}

// Both fall with the window: scores outside are never computed.
TEST(AttentionCost, AWindowCostsWhatItLeaves) {
  const int64_t ranks = world().size(), length = 96 * ranks, b = 2, heads = 4;
  for (const ContextAlgorithm algorithm : kAlgorithms) {
    for (const auto kind : {kZigZag, SequenceLayout::Kind::Contiguous}) {
      const SequenceLayout layout(kind, length, world().size(), world().rank());
      const at::Tensor full = random_tensor({b, length, 8, 8}, 1);
      for (const int64_t window : {1, 16, 33, 95, 96, 97, 200}) {
        if (window >= length) continue;
        SCOPED_TRACE(::testing::Message() << name(algorithm) << ", " << name(kind) << ", window " << window);
        const at::Tensor local = layout.take(full, 1).clone().set_requires_grad(true);
        at::Tensor out;
        int64_t forward = 0, backward = 0;
        {
          const testing::ScoreCounter counter;
          out = run(local, layout, world(), algorithm, heads, window);
          forward = counter.scores();
        }
        {
          const testing::ScoreCounter counter;
          out.backward(at::ones_like(out));
          backward = counter.scores();
        }
        at::Tensor sums = at::tensor({forward, backward}, at::kLong);
        world().all_reduce(sums).wait();
        const int64_t wanted = b * heads * testing::visible({}, length, window).sum().item<int64_t>();
        EXPECT_EQ(sums[0].item<int64_t>(), wanted);
        EXPECT_EQ(sums[1].item<int64_t>(), wanted);
      }
    }
  }
}

// Equal tiles of a window share a kernel call: 256 tiles of 16 positions are two.
TEST(AttentionCost, ASmallWindowIsFewKernelCalls) {
  const at::Tensor local = random_tensor({1, 4096, 8, 8}, 1).set_requires_grad(true);
  at::Tensor out;
  {
    const OperatorCounter counter;
    out = run(local, SequenceLayout::unsharded(4096), Group(), ContextAlgorithm::Ring, 4, /*window=*/16);
    EXPECT_EQ(counter.attention_calls, 2);
  }
  const OperatorCounter counter;
  out.backward(at::ones_like(out));
  EXPECT_EQ(counter.attention_calls, 2);
}

TEST(AttentionCost, ZigZagGivesEachRankExactlyEqualWork) {
  const int64_t ranks = world().size(), length = 12 * ranks, b = 3, heads = 4;
  const int64_t fair = b * heads * length * (length + 1) / 2 / ranks;
  for (const ContextAlgorithm algorithm : kAlgorithms) {
    SCOPED_TRACE(name(algorithm));
    const SequenceLayout layout(kZigZag, length, world().size(), world().rank());
    const at::Tensor local = layout.take(random_tensor({b, length, 8, 8}, 1), 1).clone().set_requires_grad(true);
    at::Tensor out;
    {
      const testing::ScoreCounter counter;
      out = run(local, layout, world(), algorithm);
      EXPECT_EQ(counter.scores(), fair);
    }
    const testing::ScoreCounter counter;
    out.backward(at::ones_like(out));
    EXPECT_EQ(counter.scores(), fair);
  }
}

TEST(AttentionCost, DryRunOnManyRanks) {
  const int ranks = 1024;
  std::vector<int64_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  for (const int rank : {0, 511, 1023}) {
    const Group group(dry_run_backend(rank, ranks), "cp", members, "rank " + std::to_string(rank));
    const SequenceLayout layout = SequenceLayout(kZigZag, 8 * ranks, ranks, rank).with_documents({{}, {100}});
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      const at::Tensor local = at::empty({2, 8, 8, 16}, at::TensorOptions(at::kMeta).dtype(dtype));
      for (const ContextAlgorithm algorithm : {ContextAlgorithm::Ring, ContextAlgorithm::AllGather}) {
        for (const int64_t window : {0, 20}) {
          const at::Tensor x = local.detach().set_requires_grad(true);
          const at::Tensor out = run(x, layout, group, algorithm, 4, window);
          EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 4, 8, 16}));
          EXPECT_EQ(out.scalar_type(), dtype);
          if (window == 0) continue;
          out.backward(at::ones_like(out));
          EXPECT_EQ(x.grad().sizes(), x.sizes());
        }
      }
      const at::Tensor many = at::empty({2, 8, 1024 + 2 * 8, 16}, local.options()).set_requires_grad(true);
      const at::Tensor out = run(many, layout, group, ContextAlgorithm::Ulysses, 1024);
      EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 1024, 8, 16}));
      out.backward(at::ones_like(out));
      EXPECT_EQ(many.grad().sizes(), many.sizes());
    }
  }
}

}  // namespace
}  // namespace meshtrain
