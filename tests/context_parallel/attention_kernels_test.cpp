#include "context_parallel/attention_kernels.h"

#include <gtest/gtest.h>

#include "context_parallel/capped_attention.h"
#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/memory.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::dense_attention;
using testing::DtypeTolerance;
using testing::random_tensor;
using testing::relative_error;

constexpr double kKernelScale = 0.3;
const std::vector<DtypeTolerance> kKernelPrecisions = {
    {at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};

void expect_definition(const std::vector<at::Tensor>& tensors, const AttentionRule& rule, double tolerance) {
  const at::Tensor &q = tensors[0], &k = tensors[1], &v = tensors[2], &grad = tensors[3];
  const AttentionResult attended = attend(q, k, v, Pairs::Causal, rule);
  const AttentionGradients gradients = attend_backward(grad, q, k, v, attended, Pairs::Causal, rule);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& tensor : {q, k, v}) leaves.push_back(tensor.to(at::kDouble).clone().set_requires_grad(true));
  const at::Tensor expected = dense_attention(leaves[0], leaves[1], leaves[2], {}, rule);
  expected.backward(grad.to(at::kDouble));
  EXPECT_LE(relative_error(attended.out, expected), tolerance);
  EXPECT_LE(relative_error(gradients.q, leaves[0].grad()), tolerance);
  EXPECT_LE(relative_error(gradients.k, leaves[1].grad()), tolerance);
  EXPECT_LE(relative_error(gradients.v, leaves[2].grad()), tolerance);
}

std::vector<at::Tensor> made(int64_t heads, int64_t kv_heads, int64_t length, at::ScalarType dtype) {
  return {random_tensor({2, heads, length, 8}, 1, dtype), random_tensor({2, kv_heads, length, 8}, 2, dtype),
          random_tensor({2, kv_heads, length, 8}, 3, dtype), random_tensor({2, heads, length, 8}, 4, dtype)};
}

TEST(AttentionKernels, ScoresAreCapped) {
  for (const auto& [dtype, tolerance] : kKernelPrecisions) {
    for (const int64_t window : {0, 2, 3, 6}) {
      SCOPED_TRACE(::testing::Message() << dtype << " window " << window);
      expect_definition(made(6, 3, 7, dtype), {kKernelScale, window, /*softcap=*/0.8}, tolerance);
    }
  }
}

// Several tiles of kMostScores, the last of them shorter.
TEST(AttentionKernels, CappedScoresAreComputedInTiles) {
  if (testing::world().size() > 1) GTEST_SKIP() << "the same on every rank";
  constexpr int64_t kLength = 1100;
  ASSERT_GT(2 * 2 * kLength * kLength, kMostScores);
  for (const int64_t window : {0, 300}) {
    expect_definition(made(2, 1, kLength, at::kDouble), {kKernelScale, window, /*softcap=*/0.8}, 1e-12);
  }
}

TEST(AttentionKernels, CappedScoresTakeBoundedMemory) {
  if (testing::world().size() > 1) GTEST_SKIP() << "the same on every rank";
  const std::vector<at::Tensor> some = made(4, 2, 3000, at::kFloat);
  HostMemory& memory = HostMemory::counted();
  memory.restart_peak();
  const int64_t before = memory.live();
  const AttentionRule rule{kKernelScale, /*window=*/0, /*softcap=*/0.8};
  const AttentionResult attended = attend(some[0], some[1], some[2], Pairs::Causal, rule);
  attend_backward(some[3], some[0], some[1], some[2], attended, Pairs::Causal, rule);
  EXPECT_LE(memory.peak() - before, 8 * kMostScores * 4) << "all scores are " << 2 * 4 * 3000 * 3000 * 4 << " bytes";
}

// A block in the opposite order: query t sees keys t to n - 1.
TEST(AttentionKernels, AntiCausalPairsAreTheUpperTriangle) {
  for (const double softcap : {0.0, 0.8}) {
    const AttentionRule rule{kKernelScale, 0, softcap};
    const std::vector<at::Tensor> some = made(6, 3, 7, at::kDouble);
    const auto flipped = [](const at::Tensor& tensor) { return tensor.flip(2); };
    const AttentionResult found = attend(some[0], some[1], some[2], Pairs::AntiCausal, rule);
    const at::Tensor wanted = flipped(dense_attention(flipped(some[0]), flipped(some[1]), flipped(some[2]), {}, rule));
    EXPECT_LE(relative_error(found.out, wanted), 1e-13);
    EXPECT_TRUE(found.out.transpose(1, 2).is_contiguous());
    const at::Tensor last = some[0].select(2, 6), key = some[1].select(2, 6).repeat_interleave(2, 1);
    at::Tensor score = (last * key).sum(-1) * kKernelScale;
    if (softcap > 0) score = (score / softcap).tanh() * softcap;
    EXPECT_LE(relative_error(found.lse.select(2, 6), score), 1e-13) << "the last query sees the last key alone";
    const AttentionGradients gradients =
        attend_backward(some[3], some[0], some[1], some[2], found, Pairs::AntiCausal, rule);
    const AttentionGradients reversed =
        attend_backward(flipped(some[3]), flipped(some[0]), flipped(some[1]), flipped(some[2]),
                        {flipped(found.out), flipped(found.lse)}, Pairs::Causal, rule);
    EXPECT_TRUE(gradients.q.equal(flipped(reversed.q)));
    EXPECT_TRUE(gradients.k.equal(flipped(reversed.k)));
    EXPECT_TRUE(gradients.v.equal(flipped(reversed.v)));
  }
}

TEST(AttentionKernels, RefuseAWindowThatTheyDoNotHave) {
  const at::Tensor q = at::zeros({1, 1, 7, 8});
  EXPECT_THROW(attend(q, q, q, Pairs::Causal, {kKernelScale, 3}), std::invalid_argument);
}

TEST(AttentionKernels, ForwardAndBackwardAreTheDefinition) {
  for (const auto& [dtype, tolerance] : kKernelPrecisions) {
    const at::Tensor q = random_tensor({2, 6, 7, 8}, 1, dtype), k = random_tensor({2, 3, 7, 8}, 2, dtype);
    const at::Tensor v = random_tensor({2, 3, 7, 8}, 3, dtype), grad = random_tensor({2, 6, 7, 8}, 4, dtype);
    const AttentionResult attended = attend(q, k, v, Pairs::Causal, {kKernelScale});
    const AttentionGradients gradients = attend_backward(grad, q, k, v, attended, Pairs::Causal, {kKernelScale});

    std::vector<at::Tensor> leaves;
    for (const at::Tensor& tensor : {q, k, v}) leaves.push_back(tensor.to(at::kDouble).clone().set_requires_grad(true));
    const at::Tensor expected = dense_attention(leaves[0], leaves[1], leaves[2], {}, {kKernelScale});
    expected.backward(grad.to(at::kDouble));

    const at::ScalarType computed = multiplied_in_fp32(q) ? at::kFloat : dtype;
    EXPECT_EQ(attended.out.scalar_type(), computed);
    EXPECT_EQ(gradients.q.scalar_type(), computed);
    EXPECT_EQ(attended.lse.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_LE(relative_error(attended.out, expected), tolerance) << dtype;
    EXPECT_LE(relative_error(gradients.q, leaves[0].grad()), tolerance) << dtype;
    EXPECT_LE(relative_error(gradients.k, leaves[1].grad()), tolerance) << dtype;
    EXPECT_LE(relative_error(gradients.v, leaves[2].grad()), tolerance) << dtype;
  }
}

TEST(AttentionKernels, TakeAnyStrides) {
  const at::Tensor q = random_tensor({2, 4, 5, 8}, 1), k = random_tensor({2, 2, 5, 8}, 2);
  const at::Tensor v = random_tensor({2, 2, 5, 8}, 3), grad = at::ones({1}, at::kDouble).expand({2, 4, 5, 8});
  const auto transposed = [](const at::Tensor& tensor) { return tensor.transpose(2, 3).contiguous().transpose(2, 3); };
  const auto ordered = [](const at::Tensor& tensor) { return tensor.transpose(1, 2).contiguous().transpose(1, 2); };
  const AttentionResult expected = attend(q, k, v, Pairs::Causal, {kKernelScale});
  const AttentionResult found = attend(transposed(q), transposed(k), transposed(v), Pairs::Causal, {kKernelScale});
  EXPECT_TRUE(found.out.equal(expected.out));
  for (const AttentionResult& attended :
       {expected, found, attend(ordered(q), ordered(k), ordered(v), Pairs::Causal, {kKernelScale})}) {
    EXPECT_TRUE(attended.out.transpose(1, 2).is_contiguous());
  }
  const AttentionGradients want = attend_backward(grad.contiguous(), q, k, v, expected, Pairs::Causal, {kKernelScale});
  const AttentionGradients have =
      attend_backward(grad, transposed(q), transposed(k), transposed(v), expected, Pairs::Causal, {kKernelScale});
  EXPECT_TRUE(have.q.equal(want.q));
  EXPECT_TRUE(have.k.equal(want.k));
  EXPECT_TRUE(have.v.equal(want.v));
}

void expect_same_form(const at::Tensor& meta, const at::Tensor& cpu) {
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), cpu.sizes());
  EXPECT_EQ(meta.strides(), cpu.strides());
}

// With a softcap results are fp32, or fp64, on every device.
TEST(AttentionKernels, CappedMetaTensorsHaveTheFormOfCpuTensors) {
  const AttentionRule rule{kKernelScale, 0, 0.8};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> some = made(6, 3, 7, dtype);
    std::vector<at::Tensor> meta;
    for (const at::Tensor& tensor : some) meta.push_back(tensor.to(at::kMeta));
    const AttentionResult cpu = attend(some[0], some[1], some[2], Pairs::Causal, rule),
                          there = attend(meta[0], meta[1], meta[2], Pairs::Causal, rule);
    expect_same_form(there.out, cpu.out);
    expect_same_form(there.lse, cpu.lse);
    EXPECT_EQ(there.out.scalar_type(), cpu.out.scalar_type());
    const AttentionGradients cpu_gradients =
        attend_backward(some[3], some[0], some[1], some[2], cpu, Pairs::Causal, rule);
    const AttentionGradients gradients =
        attend_backward(meta[3], meta[0], meta[1], meta[2], there, Pairs::Causal, rule);
    expect_same_form(gradients.q, cpu_gradients.q);
    expect_same_form(gradients.k, cpu_gradients.k);
    expect_same_form(gradients.v, cpu_gradients.v);
  }
}

TEST(AttentionKernels, MetaTensorsHaveTheFormOfCpuTensors) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor q = random_tensor({2, 6, 7, 8}, 1, dtype), k = random_tensor({2, 3, 5, 8}, 2, dtype);
    const at::Tensor meta_q = q.to(at::kMeta), meta_k = k.to(at::kMeta);
    const AttentionResult cpu = attend(q, k, k, Pairs::All, {kKernelScale}),
                          meta = attend(meta_q, meta_k, meta_k, Pairs::All, {kKernelScale});
    expect_same_form(meta.out, cpu.out);
    expect_same_form(meta.lse, cpu.lse);
    EXPECT_EQ(meta.out.scalar_type(), dtype);  // on Meta, as on a processor that is fast for every dtype
    EXPECT_EQ(meta.lse.scalar_type(), cpu.lse.scalar_type());
    const AttentionGradients cpu_gradients = attend_backward(q, q, k, k, cpu, Pairs::All, {kKernelScale});
    const AttentionGradients meta_gradients =
        attend_backward(meta_q, meta_q, meta_k, meta_k, meta, Pairs::All, {kKernelScale});
    expect_same_form(meta_gradients.q, cpu_gradients.q);
    expect_same_form(meta_gradients.k, cpu_gradients.k);
    expect_same_form(meta_gradients.v, cpu_gradients.v);
  }
}

}  // namespace
}  // namespace meshtrain
