// The operators of the model: CPU versions against the same formulas in fp64, Meta versions against CPU versions.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numbers>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/operator.h"
#include "runtime/training/model/operators/glu.h"
#include "runtime/training/model/operators/rms_norm.h"
#include "runtime/training/model/operators/rope.h"
#include "tests/support/dtype_tolerance.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::DtypeTolerance;
using testing::random_tensor;
using testing::relative_error;

const std::vector<DtypeTolerance> kPrecisions = {
    {at::kDouble, 1e-13}, {at::kFloat, 2e-6}, {at::kBFloat16, 3e-2}, {at::kHalf, 4e-3}};

at::Tensor leaf_of(const at::Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

at::Tensor wide_leaf_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true);
}

void expect_same_form(const at::Tensor& meta, const at::Tensor& cpu) {
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), cpu.sizes());
  EXPECT_EQ(meta.strides(), cpu.strides());
  EXPECT_EQ(meta.scalar_type(), cpu.scalar_type());
}

at::Tensor plain_activation(const at::Tensor& x, Activation activation) {
  if (activation == Activation::Silu) return x * x.sigmoid();
  return 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))).tanh());
}

class Glu : public ::testing::TestWithParam<Activation> {};

TEST_P(Glu, ForwardAndBackwardAreTheDefinition) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const int64_t features : {1, 7, 24, 112}) {
      const at::Tensor x = leaf_of(random_tensor({5, 2 * features}, 1, dtype)), wide = wide_leaf_of(x);
      const at::Tensor grad = random_tensor({5, features}, 2, dtype);
      const at::Tensor y = glu(x, GetParam());
      const std::vector<at::Tensor> halves = wide.split(features, 1);
      const at::Tensor expected = plain_activation(halves[0], GetParam()) * halves[1];
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_LE(relative_error(y, expected), tolerance) << dtype;
      y.backward(grad);
      expected.backward(grad.to(at::kDouble));
      EXPECT_LE(relative_error(x.grad(), wide.grad()), tolerance) << dtype;
    }
  }
}

TEST_P(Glu, TakesStridesAndNoRowsAndIsComputedAgainAlike) {
  const at::Tensor x = random_tensor({4, 12}, 1, at::kFloat);
  const at::Tensor strided = at::cat({x, x}, 1).narrow(1, 0, 12);
  EXPECT_TRUE(at::equal(glu(strided, GetParam()), glu(x, GetParam())));
  const at::Tensor turned = x.t().contiguous().t().detach().set_requires_grad(true), straight = leaf_of(x);
  glu(turned, GetParam()).sum().backward();
  glu(straight, GetParam()).sum().backward();
  EXPECT_LE(relative_error(turned.grad(), straight.grad()), 1e-6);
  const at::Tensor none = leaf_of(x.narrow(0, 0, 0));
  glu(none, GetParam()).sum().backward();
  EXPECT_EQ(none.grad().sizes(), (at::IntArrayRef{0, 12}));
  const LayerInput again = recomputed_glu(x, GetParam());
  EXPECT_TRUE(at::equal(again.again(again.kept), again.value));
}

TEST_P(Glu, MetaTensorsHaveTheFormOfCpuTensors) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const MetaDeviceGuard stands(device);
    for (const auto& [dtype, tolerance] : kPrecisions) {
      for (const int64_t size : {10, 64}) {
        const at::Tensor x = leaf_of(random_tensor({3, size}, 1, dtype));
        const at::Tensor meta = x.detach().to(at::kMeta).requires_grad_();
        const at::Tensor y = glu(x, GetParam()), meta_y = glu(meta, GetParam());
        expect_same_form(meta_y, y);
        y.backward(at::ones_like(y));
        meta_y.backward(at::ones_like(meta_y));
        expect_same_form(meta.grad(), x.grad());
      }
    }
  }
}

// In one pass over the rows of experts, with the bits of separate operators.
TEST_P(Glu, OfWeightedRowsIsThatOfSeparateOperators) {
  const GatedActivation gated = glu_of_experts(GetParam());
  const at::Tensor weights = random_tensor({37}, 3, at::kFloat);
  for (const auto& [dtype, tolerance] : kPrecisions) {
    const at::Tensor gate_up = random_tensor({37, 96}, 1, dtype), grad = random_tensor({37, 48}, 2, dtype);
    const auto found = gated.weighted_backward(grad.clone(), gate_up, weights);
    EXPECT_EQ(found.has_value(), has_lanes(dtype)) << dtype;
    if (!found) continue;
    const at::Tensor hidden = gated.forward(gate_up);
    const auto weighted = [&](const at::Tensor& rows) {
      return (rows.to(at::kFloat) * weights.unsqueeze(1)).to(dtype);
    };
    EXPECT_TRUE(at::equal(found->hidden, weighted(hidden))) << dtype;
    EXPECT_TRUE(at::equal(found->gate_up, gated.backward(weighted(grad), gate_up))) << dtype;
    EXPECT_LE(relative_error(found->weights, (grad.to(at::kDouble) * hidden.to(at::kDouble)).sum(1)), 2e-6) << dtype;
    const MetaDeviceGuard host(c10::kCPU);
    const auto meta = gated.weighted_backward(grad.to(at::kMeta), gate_up.to(at::kMeta), weights.to(at::kMeta));
    ASSERT_TRUE(meta);
    expect_same_form(meta->gate_up, found->gate_up);
    expect_same_form(meta->hidden, found->hidden);
    expect_same_form(meta->weights, found->weights);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, Glu, ::testing::Values(Activation::Silu, Activation::GeluTanh));

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight applied) {
  const at::Tensor factor = applied == NormWeight::PlusOne ? 1 + weight : weight;
  return x * (x.square().mean(-1, true) + eps).rsqrt() * factor;
}

constexpr double kNormEps = 1e-3;

class NormWeights : public ::testing::TestWithParam<NormWeight> {};
INSTANTIATE_TEST_SUITE_P(All, NormWeights,
                         ::testing::Values(NormWeight::Rounded, NormWeight::Wide, NormWeight::PlusOne));

TEST_P(NormWeights, ForwardAndBackwardAreTheDefinition) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 16}, {2, 3, 4, 7}, {1, 3}, {130, 48}}) {
      const at::Tensor x = leaf_of(random_tensor(shape, 1, dtype)),
                       weight = leaf_of(random_tensor({shape.back()}, 2, dtype));
      const at::Tensor wide_x = wide_leaf_of(x), wide_weight = wide_leaf_of(weight);
      const at::Tensor grad = random_tensor(shape, 3, dtype);
      const at::Tensor y = rms_norm(x, weight, kNormEps, GetParam());
      const at::Tensor expected = plain_norm(wide_x, wide_weight, kNormEps, GetParam());
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_LE(relative_error(y, expected), tolerance) << dtype;
      y.backward(grad);
      expected.backward(grad.to(at::kDouble));
      EXPECT_LE(relative_error(x.grad(), wide_x.grad()), tolerance) << dtype;
      EXPECT_LE(relative_error(weight.grad(), wide_weight.grad()), tolerance) << dtype;
    }
  }
}

// Halves are rounded where transformers rounds: Llama before the weight, OLMo 2 and Gemma after it.
TEST(RmsNorm, RoundsHalvesWhereTheWeightSays) {
  const at::Tensor x = random_tensor({50, 64}, 1, at::kBFloat16), weight = random_tensor({64}, 2, at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat), normalised = wide * (wide.square().mean(-1, true) + kNormEps).rsqrt();
  const at::Tensor w = weight.to(at::kFloat);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, kNormEps, NormWeight::Rounded), normalised.to(at::kBFloat16) * weight));
  EXPECT_TRUE(at::equal(rms_norm(x, weight, kNormEps, NormWeight::Wide), (normalised * w).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(rms_norm(x, weight, kNormEps, NormWeight::PlusOne), (normalised * (1 + w)).to(at::kBFloat16)));
}

RmsNorm norm_with(const at::Tensor& weight, const at::Tensor& gradient = {}, NormWeight applied = NormWeight::Rounded) {
  RmsNorm norm("norm", weight.numel(), kNormEps, applied, "", weight.options());
  norm.weight()->tensor = leaf_of(weight);
  if (gradient.defined()) norm.weight()->tensor.mutable_grad() = gradient;
  return norm;
}

// The fused sum and norm have the bits of the separate ones; also when the weight's gradient is added to a buffer, and
// when the norm is recomputed.
TEST_P(NormWeights, OfASumIsTheSumAndItsNorm) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const auto& [recompute, size] : {std::pair(false, 8), {true, 8}, {false, 32}, {true, 32}}) {
      const at::Tensor weight = random_tensor({size}, 3, dtype);
      const at::Tensor grad_out = random_tensor({5, size}, 4, dtype), grad_sum = random_tensor({5, size}, 5, dtype);
      const at::Tensor buffer = random_tensor({size}, 6, at::kFloat), other_buffer = buffer.clone();
      RmsNorm fused = norm_with(weight, dtype == at::kBFloat16 ? buffer : at::Tensor(), GetParam());
      RmsNorm apart = norm_with(weight, dtype == at::kBFloat16 ? other_buffer : at::Tensor(), GetParam());
      const at::Tensor x = leaf_of(random_tensor({5, size}, 1, dtype)),
                       residual = leaf_of(random_tensor({5, size}, 2, dtype));
      const at::Tensor other_x = leaf_of(x), other_residual = leaf_of(residual);

      const RmsNorm::Sum both = fused.of_sum(x, residual, recompute);
      const at::Tensor sum = other_x + other_residual, out = apart.forward(sum);
      EXPECT_TRUE(at::equal(both.sum, sum));
      EXPECT_TRUE(at::equal(both.normed.value, out));
      if (recompute) {
        EXPECT_TRUE(at::equal(both.normed.again(both.normed.kept), out));
      }
      torch::autograd::backward({both.sum, both.normed.value}, {grad_sum, grad_out});
      torch::autograd::backward({sum, out}, {grad_sum, grad_out});
      EXPECT_TRUE(at::equal(x.grad(), other_x.grad())) << dtype;
      EXPECT_TRUE(at::equal(residual.grad(), other_residual.grad())) << dtype;
      EXPECT_TRUE(at::equal(fused.weight()->tensor.grad(), apart.weight()->tensor.grad())) << dtype;
      if (dtype == at::kBFloat16) {
        EXPECT_TRUE(fused.weight()->tensor.grad().is_alias_of(buffer));
      }
    }
  }
}

// A residual stream in fp32 beside layers in bf16: the sum keeps fp32, the norm's output is bf16.
TEST_P(NormWeights, OfASumWithAWideStream) {
  for (const int64_t size : {12, 48}) {
    const at::Tensor weight = random_tensor({size}, 3, at::kBFloat16);
    const at::Tensor x = leaf_of(random_tensor({70, size}, 1, at::kBFloat16)), wide_x = wide_leaf_of(x);
    const at::Tensor residual = leaf_of(random_tensor({70, size}, 2, at::kFloat)), wide = wide_leaf_of(residual);
    RmsNorm norm = norm_with(weight, {}, GetParam());
    const at::Tensor wide_weight = wide_leaf_of(weight);
    const RmsNorm::Sum both = norm.of_sum(x, residual, false);
    const at::Tensor sum = wide_x + wide, expected = plain_norm(sum, wide_weight, kNormEps, GetParam());
    EXPECT_EQ(both.sum.scalar_type(), at::kFloat);
    EXPECT_EQ(both.normed.value.scalar_type(), at::kBFloat16);
    EXPECT_LE(relative_error(both.sum, sum), 1e-6);
    EXPECT_LE(relative_error(both.normed.value, expected), 1e-2);
    const at::Tensor of_sum = random_tensor({70, size}, 4, at::kFloat),
                     of_out = random_tensor({70, size}, 5, at::kBFloat16);
    torch::autograd::backward({both.sum, both.normed.value}, {of_sum, of_out});
    torch::autograd::backward({sum, expected}, {of_sum.to(at::kDouble), of_out.to(at::kDouble)});
    EXPECT_LE(relative_error(residual.grad(), wide.grad()), 1e-5);
    EXPECT_LE(relative_error(x.grad(), wide_x.grad()), 1e-2);
    EXPECT_LE(relative_error(norm.weight()->tensor.grad(), wide_weight.grad()), 1e-2);
  }
}

TEST(RmsNorm, OfASumOfWhichOnePartIsUsed) {
  const at::Tensor weight = random_tensor({8}, 3), grad = random_tensor({5, 8}, 4);
  for (const bool only_norm : {false, true}) {
    RmsNorm fused = norm_with(weight), apart = norm_with(weight);
    const at::Tensor x = leaf_of(random_tensor({5, 8}, 1)), residual = leaf_of(random_tensor({5, 8}, 2));
    const at::Tensor other = leaf_of(x);
    const RmsNorm::Sum both = fused.of_sum(x, residual, false);
    const at::Tensor sum = other + residual.detach();
    (only_norm ? both.normed.value : both.sum).backward(grad);
    (only_norm ? apart.forward(sum) : sum).backward(grad);
    EXPECT_TRUE(at::equal(x.grad(), other.grad()));
    EXPECT_TRUE(at::equal(residual.grad(), other.grad()));
    EXPECT_EQ(fused.weight()->tensor.grad().defined(), only_norm);
  }
}

TEST(RmsNorm, TakesStridesNoRowsAndFrozenWeights) {
  const at::Tensor weight = random_tensor({6}, 3, at::kFloat), all = random_tensor({2, 3, 5, 6}, 1, at::kFloat);
  const at::Tensor heads = all.narrow(2, 1, 2);
  EXPECT_TRUE(at::equal(rms_norm(heads, weight, kNormEps), rms_norm(heads.contiguous(), weight, kNormEps)));
  const at::Tensor x = leaf_of(heads);
  rms_norm(x, weight, kNormEps).sum().backward();  // the weight needs no gradient
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(rms_norm(all.narrow(0, 0, 0), weight, kNormEps).sizes(), (at::IntArrayRef{0, 3, 5, 6}));
}

class NormOnMeta : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, NormOnMeta, ::testing::Values(8, 32));

TEST_P(NormOnMeta, TensorsHaveTheFormOfCpuTensors) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const MetaDeviceGuard stands(device);
    for (const auto& [dtype, tolerance] : kPrecisions) {
      const at::Tensor weight = random_tensor({GetParam()}, 3, dtype);
      RmsNorm cpu = norm_with(weight), meta = norm_with(weight.to(at::kMeta));
      const at::Tensor x = leaf_of(random_tensor({5, GetParam()}, 1, dtype)),
                       meta_x = x.detach().to(at::kMeta).requires_grad_();
      const RmsNorm::Sum both = cpu.of_sum(x, x.detach(), false),
                         meta_both = meta.of_sum(meta_x, meta_x.detach(), false);
      expect_same_form(meta_both.sum, both.sum);
      expect_same_form(meta_both.normed.value, both.normed.value);
      expect_same_form(rms_norm(meta_x.detach(), meta.weight()->tensor, kNormEps), both.sum);
      (both.sum + both.normed.value).sum().backward();
      (meta_both.sum + meta_both.normed.value).sum().backward();
      expect_same_form(meta_x.grad(), x.grad());
      expect_same_form(meta.weight()->tensor.grad(), cpu.weight()->tensor.grad());
    }
  }
}

Rotary angles(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const at::Tensor angle = random_tensor(shape, 9);
  return {angle.cos().to(dtype), angle.sin().to(dtype)};
}

/// Rotates pairs of features as complex numbers, in fp64.
at::Tensor plain_rotation(const at::Tensor& x, const Rotary& rotary) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const at::Tensor cos = rotary.cos.to(at::kDouble), sin = rotary.sin.to(at::kDouble);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1);
}

TEST(Rope, ForwardAndBackwardAreTheDefinition) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const std::vector<int64_t>& of : {std::vector<int64_t>{5, 1, 3}, {2, 5, 1, 3}, {5, 1, 24}, {2, 5, 1, 24}}) {
      const Rotary rotary = angles(of, dtype);
      const std::vector<int64_t> sizes = {2, 5, 4, 2 * of.back()};
      const at::Tensor x = leaf_of(random_tensor(sizes, 1, dtype)), wide = wide_leaf_of(x);
      const at::Tensor before = x.detach().clone(), grad = random_tensor(sizes, 2, dtype);
      const at::Tensor y = rotate(x, rotary), expected = plain_rotation(wide, rotary);
      EXPECT_LE(relative_error(y, expected), tolerance) << dtype << of;
      EXPECT_TRUE(at::equal(x.detach(), before)) << "a leaf keeps its values";
      y.backward(grad);
      expected.backward(grad.to(at::kDouble));
      EXPECT_LE(relative_error(x.grad(), wide.grad()), tolerance) << dtype << of;
    }
  }
}

/// Computes queries, keys and values by splitting them first.
std::vector<at::Tensor> split_then_rotated(const at::Tensor& qkv, const Rotary& rotary) {
  std::vector<at::Tensor> parts = qkv.split_with_sizes({4, 2, 2}, 2);
  return {rotate(parts[0], rotary), rotate(parts[1], rotary), parts[2]};
}

TEST(Rope, SplitAndRotatedInOneIsTheSameBitByBit) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    const Rotary rotary = angles({5, 1, 3}, dtype);
    const at::Tensor leaf = leaf_of(random_tensor({2, 5, 8, 6}, 1, dtype)), other_leaf = leaf_of(leaf);
    const at::Tensor qkv = leaf * 2;  // not a leaf: it is overwritten
    const auto [q, k, v] = split_rotated(qkv, rotary, 4, 2);
    const std::vector<at::Tensor> expected = split_then_rotated(other_leaf * 2, rotary);
    EXPECT_TRUE(q.is_alias_of(qkv) && k.is_alias_of(qkv) && v.is_alias_of(qkv));
    EXPECT_TRUE(at::equal(q, expected[0]) && at::equal(k, expected[1]) && at::equal(v, expected[2])) << dtype;
    const at::Tensor of_q = random_tensor({2, 5, 4, 6}, 2, dtype), of_v = random_tensor({2, 5, 2, 6}, 3, dtype);
    const at::Tensor of_k = random_tensor({2, 2, 5, 6}, 4, dtype).transpose(1, 2);  // any strides
    torch::autograd::backward({q, k, v}, {of_q, of_k, of_v});
    torch::autograd::backward(expected, {of_q, of_k, of_v});
    EXPECT_TRUE(at::equal(leaf.grad(), other_leaf.grad())) << dtype;
  }
}

TEST(Rope, SplitPartsThatNobodyUsesAndLeaves) {
  const Rotary rotary = angles({5, 1, 3}, at::kDouble);
  const at::Tensor leaf = leaf_of(random_tensor({1, 5, 8, 6}, 1)), before = leaf.detach().clone();
  const auto [q, k, v] = split_rotated(leaf, rotary, 4, 2);
  EXPECT_TRUE(at::equal(leaf.detach(), before));
  EXPECT_TRUE(at::equal(v.detach(), before.narrow(2, 6, 2)));
  k.sum().backward();
  EXPECT_EQ(leaf.grad().narrow(2, 0, 4).abs().max().item<double>(), 0);
  EXPECT_EQ(leaf.grad().narrow(2, 6, 2).abs().max().item<double>(), 0);
  EXPECT_GT(leaf.grad().narrow(2, 4, 2).abs().min().item<double>(), 0);
}

TEST(Rope, MetaTensorsHaveTheFormOfCpuTensors) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const MetaDeviceGuard stands(device);
    for (const auto& [dtype, tolerance] : kPrecisions) {
      const Rotary rotary = angles({5, 1, 3}, dtype), meta_rotary{rotary.cos.to(at::kMeta), rotary.sin.to(at::kMeta)};
      const at::Tensor leaf = leaf_of(random_tensor({2, 5, 8, 6}, 1, dtype));
      const at::Tensor meta_leaf = leaf.detach().to(at::kMeta).requires_grad_();
      const auto [q, k, v] = split_rotated(leaf * 2, rotary, 4, 2);
      const auto [meta_q, meta_k, meta_v] = split_rotated(meta_leaf * 2, meta_rotary, 4, 2);
      expect_same_form(meta_q, q);
      expect_same_form(meta_k, k);
      expect_same_form(meta_v, v);
      torch::autograd::backward({q, k}, {at::ones_like(q), at::ones_like(k)});
      torch::autograd::backward({meta_q, meta_k}, {at::ones_like(meta_q), at::ones_like(meta_k)});
      expect_same_form(meta_leaf.grad(), leaf.grad());
    }
  }
}

}  // namespace
}  // namespace meshtrain
