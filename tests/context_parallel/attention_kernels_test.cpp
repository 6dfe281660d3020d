#include "context_parallel/attention_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mesh/half_precision.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::dense_attention;
using testing::Precision;
using testing::random_tensor;
using testing::relative_error;

constexpr double kKernelScale = 0.3;
const std::vector<Precision> kKernelPrecisions = {
    {at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};

TEST(AttentionKernels, ForwardAndBackwardAreTheDefinition) {
  for (const auto& [dtype, tolerance] : kKernelPrecisions) {
    const at::Tensor q = random_tensor({2, 6, 7, 8}, 1, dtype), k = random_tensor({2, 3, 7, 8}, 2, dtype);
    const at::Tensor v = random_tensor({2, 3, 7, 8}, 3, dtype), grad = random_tensor({2, 6, 7, 8}, 4, dtype);
    const Attended attended = attend(q, k, v, true, kKernelScale);
    const AttentionGradients gradients = attend_backward(grad, q, k, v, attended, true, kKernelScale);

    std::vector<at::Tensor> leaves;
    for (const at::Tensor& tensor : {q, k, v}) leaves.push_back(tensor.to(at::kDouble).clone().set_requires_grad(true));
    const at::Tensor expected = dense_attention(leaves[0], leaves[1], leaves[2], {}, kKernelScale);
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
  const Attended expected = attend(q, k, v, true, kKernelScale);
  const Attended found = attend(transposed(q), transposed(k), transposed(v), true, kKernelScale);
  EXPECT_TRUE(found.out.equal(expected.out));
  for (const Attended& attended : {expected, found, attend(ordered(q), ordered(k), ordered(v), true, kKernelScale)}) {
    EXPECT_TRUE(attended.out.transpose(1, 2).is_contiguous());
  }
  const AttentionGradients want = attend_backward(grad.contiguous(), q, k, v, expected, true, kKernelScale);
  const AttentionGradients have =
      attend_backward(grad, transposed(q), transposed(k), transposed(v), expected, true, kKernelScale);
  EXPECT_TRUE(have.q.equal(want.q));
  EXPECT_TRUE(have.k.equal(want.k));
  EXPECT_TRUE(have.v.equal(want.v));
}

void expect_same_form(const at::Tensor& meta, const at::Tensor& cpu) {
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), cpu.sizes());
  EXPECT_EQ(meta.strides(), cpu.strides());
}

TEST(AttentionKernels, MetaTensorsHaveTheFormOfCpuTensors) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor q = random_tensor({2, 6, 7, 8}, 1, dtype), k = random_tensor({2, 3, 5, 8}, 2, dtype);
    const at::Tensor meta_q = q.to(at::kMeta), meta_k = k.to(at::kMeta);
    const Attended cpu = attend(q, k, k, false, kKernelScale),
                   meta = attend(meta_q, meta_k, meta_k, false, kKernelScale);
    expect_same_form(meta.out, cpu.out);
    expect_same_form(meta.lse, cpu.lse);
    EXPECT_EQ(meta.out.scalar_type(), dtype);  // on Meta, as on a processor that is fast for every dtype
    EXPECT_EQ(meta.lse.scalar_type(), cpu.lse.scalar_type());
    const AttentionGradients cpu_gradients = attend_backward(q, q, k, k, cpu, false, kKernelScale);
    const AttentionGradients meta_gradients =
        attend_backward(meta_q, meta_q, meta_k, meta_k, meta, false, kKernelScale);
    expect_same_form(meta_gradients.q, cpu_gradients.q);
    expect_same_form(meta_gradients.k, cpu_gradients.k);
    expect_same_form(meta_gradients.v, cpu_gradients.v);
  }
}

}  // namespace
}  // namespace meshtrain
