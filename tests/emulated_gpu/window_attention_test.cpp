// Windows and softcaps on the emulated GPU, against the definition: flash attention's own window on one rank, its own
// and the other blocks over several ranks, inside documents too.
#include <gtest/gtest.h>

#include "context_parallel/attention.h"
#include "context_parallel/choice.h"
#include "mesh/device/aten.h"
#include "mesh/staged.h"
#include "tests/context_parallel/reference.h"
#include "tests/gpu/kernel_counter.h"
#include "tests/gpu/reference.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kWindowLength = 96, kWindowHeads = 4, kWindowKvHeads = 2, kWindowDim = 8;
const Documents kNone = {}, kDivided = {{5, 40, 41}, {}};

struct WindowCase {
  ContextAlgorithm algorithm;
  SequenceLayout::Kind kind;
  Documents documents;
  AttentionRule rule;
  DtypeTolerance precision;
};

/// Expects outputs and gradients of the definition. Returns the number of calls of flash attention's forward.
int64_t flash_calls(const WindowCase& c) {
  static const Group group(staged(world().backend()), "device", world().ranks(), world().coordinate_text());
  SequenceLayout layout(c.kind, kWindowLength, world().size(), world().rank());
  const at::Tensor fused =
      random_tensor({2, kWindowLength, kWindowHeads + 2 * kWindowKvHeads, kWindowDim}, 1, c.precision.dtype);
  const at::Tensor grad = random_tensor({2, kWindowLength, kWindowHeads, kWindowDim}, 2, c.precision.dtype);
  const at::Tensor full = fused.to(at::kDouble).set_requires_grad(true);
  const Heads heads = split_heads(full, kWindowHeads, kWindowKvHeads);
  AttentionRule rule = c.rule, local_rule = c.rule;
  if (rule.sinks.defined()) {
    rule.sinks = rule.sinks.to(c.precision.dtype).to(at::kDouble).set_requires_grad(true);
    local_rule.sinks = c.rule.sinks.to(c.precision.dtype).to(gpu()).detach().set_requires_grad(true);
  }
  const at::Tensor expected = dense_attention(heads.q, heads.k, heads.v, c.documents, rule).transpose(1, 2);
  expected.backward(grad.to(at::kDouble));

  const at::Tensor local = layout.take(fused, 1).to(gpu()).detach().set_requires_grad(true);
  const Heads parts = split_heads(local, kWindowHeads, kWindowKvHeads);
  if (!c.documents.empty()) layout = layout.with_documents(c.documents);
  const KernelCounter calls;
  const at::Tensor found = attention(parts.q, parts.k, parts.v, layout, group, c.algorithm, local_rule).transpose(1, 2);
  const int64_t flash = calls.count("_flash_attention_forward");
  found.backward(layout.take(grad, 1).to(gpu()));
  EXPECT_EQ(calls.cudnn(), 0);
  EXPECT_LE(error_of(found, layout.take(expected, 1)), c.precision.tolerance);
  const std::vector<int64_t> sizes = {kWindowHeads, kWindowKvHeads, kWindowKvHeads};
  const std::vector<at::Tensor> have = local.grad().split_with_sizes(sizes, 2);
  const std::vector<at::Tensor> want = layout.take(full.grad(), 1).split_with_sizes(sizes, 2);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_LE(error_of(have[i], want[i]), c.precision.tolerance) << "gradient of "
                                                                 << "qkv"[i];
  }
  if (rule.sinks.defined()) {
    at::Tensor sum = local_rule.sinks.grad().cpu().to(at::kDouble);
    world().all_reduce(sum).wait();
    // Terms of both signs, from outputs that are rounded.
    EXPECT_LE(error_of(sum, rule.sinks.grad()), 2 * c.precision.tolerance) << "gradient of sinks";
  }
  return flash;
}

template <class Check>
void for_all_windows(const Check& check) {
  using enum ContextAlgorithm;
  for (const ContextAlgorithm algorithm : {Ring, AllGather, Ulysses}) {
    for (const auto kind : {SequenceLayout::Kind::Contiguous, SequenceLayout::Kind::ZigZag}) {
      for (const int64_t window : {2, 11, 24, 50}) {
        SCOPED_TRACE(::testing::Message() << name(algorithm) << ", " << name(kind) << ", window " << window);
        check(algorithm, kind, window);
      }
    }
  }
}

TEST(PackedAttention, FlashHasTheWindow) {
  for_all_windows([](ContextAlgorithm algorithm, SequenceLayout::Kind kind, int64_t window) {
    for (const DtypeTolerance& precision : {DtypeTolerance{at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}}) {
      const int64_t calls = flash_calls({algorithm, kind, kNone, {0.35, window}, precision});
      EXPECT_TRUE(world().size() > 1 || calls == 1) << calls << ": the window is the kernel's";
    }
  });
}

TEST(PackedAttention, DocumentsHaveWindows) {
  for_all_windows([](ContextAlgorithm algorithm, SequenceLayout::Kind kind, int64_t window) {
    const int64_t calls = flash_calls({algorithm, kind, kDivided, {0.35, window}, {at::kHalf, 2e-3}});
    EXPECT_TRUE(world().size() > 1 || calls == 1) << calls << ": all documents";
  });
}

TEST(PackedAttention, OtherKernelsTakeTiles) {
  for_all_windows([](ContextAlgorithm algorithm, SequenceLayout::Kind kind, int64_t window) {
    EXPECT_EQ(flash_calls({algorithm, kind, kNone, {0.35, window}, {at::kFloat, 1e-5}}), 0);
    EXPECT_EQ(flash_calls({algorithm, kind, kDivided, {0.35, window}, {at::kFloat, 1e-5}}), 0);
  });
}

TEST(PackedAttention, HasSinks) {
  for_all_windows([](ContextAlgorithm algorithm, SequenceLayout::Kind kind, int64_t window) {
    if (window != 11) return;
    AttentionRule rule{0.35, window};
    rule.sinks = random_tensor({kWindowHeads}, 3).mul(2);
    flash_calls({algorithm, kind, kDivided, rule, {at::kHalf, 2e-3}});
    flash_calls({algorithm, kind, kNone, rule, {at::kFloat, 1e-5}});
  });
}

TEST(PackedAttention, SoftcapsAreNotFlash) {
  for_all_windows([](ContextAlgorithm algorithm, SequenceLayout::Kind kind, int64_t window) {
    EXPECT_EQ(flash_calls({algorithm, kind, kDivided, {0.35, window, 0.7}, {at::kHalf, 2e-3}}), 0);
  });
}

}  // namespace
}  // namespace meshtrain::testing
