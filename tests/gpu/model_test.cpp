#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "mesh/device/aten.h"
#include "mesh/device/operator.h"
#include "runtime/training/model/operators/glu.h"
#include "runtime/training/model/operators/rms_norm.h"
#include "runtime/training/model/operators/rope.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  return c10::str(tensor.sizes());
}

// Widths with and without complete vectors, more rows than blocks, one row, no rows.
TEST(GluOnGpu, IsAsOnTheHost) {
  for (const DtypeTolerance& precision : kPrecisions) {
    for (const auto& [rows, features] : {std::pair<int64_t, int64_t>{0, 8},
                                         {1, 1},
                                         {3, 7},
                                         {5, 8},
                                         {33, 1000},
                                         {many(1027), 2752},
                                         {many(70000), 24}}) {
      const at::Tensor x = fresh({rows, 2 * features});
      for (const Activation activation : {Activation::Silu, Activation::GeluTanh}) {
        expect_as_on_host("glu " + shape_of(x), precision, {x},
                          [&](const auto& inputs) { return std::vector<at::Tensor>{glu(inputs[0], activation)}; });
      }
    }
  }
}

// Saturated and huge gates give finite numbers.
TEST(GluOnGpu, LargeGates) {
  const at::Tensor x = at::cat({at::tensor({-1e30, -200.0, -90.0, 90.0, 200.0, 1e30}), at::ones({6})}).reshape({1, 12});
  for (const Activation activation : {Activation::Silu, Activation::GeluTanh}) {
    expect_as_on_host("glu", {at::kFloat, 1e-5}, {x},
                      [&](const auto& inputs) { return std::vector<at::Tensor>{glu(inputs[0], activation)}; });
  }
}

constexpr double kEps = 1e-5;

/// Returns a size above 8192, where a thread has more of a row; the emulation, slow by columns, has fewer of them.
int64_t wide() {
  return gpu().is_cuda() ? 16384 : 8448;
}

TEST(RmsNormOnGpu, IsAsOnTheHost) {
  for (const DtypeTolerance& precision : kPrecisions) {
    for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{0, 8},
                                     {1, 3},
                                     {3, 6},
                                     {7, 64},
                                     {many(1000), 100},
                                     {5, 1023},
                                     {many(2049), 2048},
                                     {many(65), 5120},
                                     {9, 8193},
                                     {many(70000), 128},
                                     {3, wide()}}) {
      const at::Tensor x = fresh({rows, size}), weight = fresh({size});
      for (const NormWeight applied : {NormWeight::Rounded, NormWeight::Wide, NormWeight::PlusOne}) {
        expect_as_on_host("rms_norm " + shape_of(x), precision, {x, weight}, [&](const auto& inputs) {
          return std::vector<at::Tensor>{rms_norm(inputs[0], inputs[1], kEps, applied)};
        });
      }
    }
  }
}

TEST(RmsNormOnGpu, OfASum) {
  for (const DtypeTolerance& precision : kPrecisions) {
    for (const auto& [rows, size] :
         {std::pair<int64_t, int64_t>{1, 5}, {many(131), 2048}, {many(1000), 576}, {33, 999}}) {
      const at::Tensor x = fresh({rows, size});
      expect_as_on_host("rms_norm_of_sum " + shape_of(x), precision, {x, fresh({rows, size}), fresh({size})},
                        [&](const auto& inputs) {
                          RmsNorm norm("norm", inputs[2].numel(), kEps, NormWeight::Rounded, "", inputs[2].options());
                          norm.weight()->tensor = inputs[2];
                          const RmsNorm::Sum both = norm.of_sum(inputs[0], inputs[1], /*recompute=*/false);
                          return std::vector<at::Tensor>{both.sum, both.normed.value};
                        });
    }
  }
}

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

// A residual stream in fp32 beside layers in a half.
TEST(RmsNormOnGpu, OfAWiderStream) {
  for (const DtypeTolerance& precision : kPrecisions) {
    for (const auto& [rows, size] :
         {std::pair<int64_t, int64_t>{1, 5}, {many(131), 2048}, {many(1000), 576}, {33, 999}, {3, wide()}}) {
      const at::Tensor x = fresh({rows, size});
      for (const NormWeight applied : {NormWeight::Rounded, NormWeight::PlusOne}) {
        expect_as_on_host(
            "rms_norm of a wider stream " + shape_of(x), precision, {x, fresh({rows, size}), fresh({size})},
            [&](const auto& inputs) {
              RmsNorm norm("norm", inputs[2].numel(), kEps, applied, "", inputs[2].options());
              norm.weight()->tensor = inputs[2];
              const at::Tensor stream = widened(inputs[1]) * 1.01;
              const RmsNorm::Sum both = norm.of_sum(inputs[0], stream, /*recompute=*/false);
              const at::Tensor normed = norm.forward(stream);
              EXPECT_TRUE(at::equal(both.sum, stream + inputs[0])) << "not rounded to the half";
              return std::vector<at::Tensor>{both.sum.to(inputs[0].scalar_type()), both.normed.value, normed};
            });
      }
    }
  }
}

// Heads that are a part of their tokens' heads are read without a copy.
TEST(RmsNormOnGpu, OfSomeHeads) {
  for (const DtypeTolerance& precision : kPrecisions) {
    expect_as_on_host("rms_norm of heads", precision, {fresh({2, 37, 9, 128}), fresh({128})}, [](const auto& inputs) {
      return std::vector<at::Tensor>{rms_norm(inputs[0].narrow(2, 1, 5), inputs[1], kEps)};
    });
  }
}

// An fp32 buffer gets a half's gradient before rounding; two runs give the same bits.
TEST(RmsNormOnGpu, WeightGradientsAreAddedInPlaceAndRepeatable) {
  const int64_t rows = many(4099);
  const at::Tensor x = fresh({rows, 2048}).to(at::kBFloat16).to(gpu());
  const at::Tensor grad = fresh({rows, 2048}).to(at::kBFloat16).to(gpu()), weight = fresh({2048}).to(at::kBFloat16);
  const auto gradient = [&] {
    const at::Tensor leaf = weight.to(gpu()).set_requires_grad(true);
    leaf.mutable_grad() = at::ones({2048}, at::TensorOptions(gpu()).dtype(at::kFloat));
    rms_norm(x, leaf, kEps).backward(grad);
    return leaf.grad();
  };
  const at::Tensor once = gradient();
  EXPECT_TRUE(at::equal(once, gradient()));
  const at::Tensor wide = x.to(at::kCPU).to(at::kDouble);
  const at::Tensor normed = wide * (wide.square().mean(-1, true) + kEps).rsqrt();
  EXPECT_LE(error_of(once, (grad.to(at::kCPU).to(at::kDouble) * normed).sum(0) + 1), 1e-5);
}

at::Tensor with_angles(const std::vector<at::Tensor>& inputs, int64_t heads, int64_t kv_heads, int part) {
  const Rotary rotary{inputs[1], inputs[2]};
  if (heads == 0) return rotate(inputs[0] * 1, rotary);
  const auto [q, k, v] = split_rotated(inputs[0] * 1, rotary, heads, kv_heads);
  return part == 0 ? q : part == 1 ? k : v;
}

TEST(RopeOnGpu, IsAsOnTheHost) {
  for (const DtypeTolerance& precision : kPrecisions) {
    for (const int64_t half : {1, 3, 8, 32, 40, 64, 300}) {
      const int64_t positions = half == 32 ? many(2049) : 19;
      for (const bool each : {false, true}) {
        const at::Tensor angle = each ? fresh({2, positions, 1, half}) : fresh({positions, 1, half});
        const std::vector<at::Tensor> inputs = {fresh({2, positions, 8, 2 * half}), angle.cos(), angle.sin()};
        const std::string what = "rope of " + std::to_string(2 * half);
        expect_as_on_host(
            what, precision, inputs, [](const auto& of) { return std::vector<at::Tensor>{with_angles(of, 0, 0, 0)}; },
            2);
        expect_as_on_host(
            what + ", split", precision, inputs,
            [](const auto& of) {
              return std::vector<at::Tensor>{with_angles(of, 4, 2, 0), with_angles(of, 4, 2, 1),
                                             with_angles(of, 4, 2, 2)};
            },
            2);
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
