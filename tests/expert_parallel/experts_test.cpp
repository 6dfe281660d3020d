#include "expert_parallel/experts.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <stdexcept>

#include "mesh/device/gradient_state.h"
#include "tensor_parallel/products/deferred.h"
#include "tests/expert_parallel/naive.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

at::Tensor output_gradient(const ExpertCase& shape, at::ScalarType dtype = at::kDouble) {
  return random_tensor({shape.tokens, shape.width}, 50).to(dtype);
}

/// Compares the layer and all gradients with the definition in fp64 of the same values.
void expect_definition(const ExpertCase& shape, at::ScalarType dtype, at::ScalarType weights_dtype, double tolerance) {
  const ExpertInputs inputs(shape, dtype, weights_dtype);
  ExpertInputs exact(shape, at::kDouble, at::kDouble);
  const std::vector<at::Tensor> own = inputs.leaves(), wide = exact.leaves();
  for (size_t i = 0; i < own.size(); ++i) {
    const at::NoGradGuard no_grad;
    at::Tensor(wide[i]).copy_(own[i]);
  }
  const at::Tensor dy = output_gradient(shape, dtype), y = by_mixture(shape, inputs);
  const at::Tensor expected = by_definition(shape, exact);
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LE(relative_error(y, expected), tolerance);
  y.backward(dy);
  expected.backward(dy.to(at::kDouble));
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].grad().scalar_type(), own[i].scalar_type());
    EXPECT_LE(relative_error(own[i].grad(), wide[i].grad()), tolerance) << "leaf " << i;
  }
}

TEST(Experts, AreTheDefinition) {
  for (const bool clamped : {false, true}) {
    for (const bool biases : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "clamped " << clamped << ", biases " << biases);
      ExpertCase shape = random_case();
      shape.clamped = clamped;
      shape.biases = biases;
      expect_definition(shape, at::kDouble, at::kDouble, 1e-12);
      expect_definition(shape, at::kFloat, at::kFloat, 1e-5);
      shape.limit = 1e3;  // where halves round a value to the other side of the limit, gradients differ
      expect_definition(shape, at::kBFloat16, at::kFloat, 3e-2);
      expect_definition(shape, at::kBFloat16, at::kBFloat16, 3e-2);
      expect_definition(shape, at::kHalf, at::kHalf, 6e-3);
    }
  }
}

TEST(Experts, MayAllBeOneOrHaveOneRowEach) {
  ExpertCase shape = random_case();
  shape.biases = true;
  shape.top_k = 1;
  shape.choices = at::full({shape.tokens, 1}, 3, at::kLong);
  expect_definition(shape, at::kDouble, at::kDouble, 1e-12);
  shape.tokens = shape.num_experts;
  shape.choices = at::arange(shape.num_experts, at::kLong).unsqueeze(1).contiguous();
  expect_definition(shape, at::kDouble, at::kDouble, 1e-12);
  shape.tokens = 0;
  shape.choices = at::empty({0, 1}, at::kLong);
  EXPECT_EQ(by_mixture(shape, ExpertInputs(shape, at::kDouble, at::kDouble)).numel(), 0);
}

/// Runs the layer forward and backward. Returns the result and the leaves' gradients.
std::vector<at::Tensor> results(const ExpertCase& shape, const ExpertInputs& inputs, bool recompute) {
  const at::Tensor y = by_mixture(shape, inputs, recompute);
  y.backward(output_gradient(shape, y.scalar_type()));
  std::vector<at::Tensor> all = {y.detach()};
  for (const at::Tensor& leaf : inputs.leaves()) all.push_back(leaf.grad());
  return all;
}

TEST(Experts, HaveTheSameBitsEachTimeAndWhenTheyAreRecomputed) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ExpertCase shape = random_case(300);
    shape.biases = true;
    const auto run = [&](bool recompute) { return results(shape, ExpertInputs(shape, dtype, at::kFloat), recompute); };
    const std::vector<at::Tensor> kept = run(false), again = run(false), recomputed = run(true);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(at::equal(kept[i], again[i])) << i;
      EXPECT_TRUE(at::equal(kept[i], recomputed[i])) << i;
    }
  }
}

/// Gives each of the experts' weights a buffer, full of NaN and unwritten.
void leave_unwritten(const ExpertInputs& inputs, at::ScalarType dtype) {
  const std::vector<at::Tensor> leaves = inputs.leaves();
  for (size_t i = 2; i < leaves.size(); ++i) {
    leaves[i].mutable_grad() = at::empty_like(leaves[i], dtype).detach();
    leaves[i].grad().fill_(std::numeric_limits<double>::quiet_NaN());
    GradientState::attach(leaves[i], [] {});
    GradientState::of(leaves[i])->set_written(false);
  }
}

TEST(Experts, WriteUnwrittenGradientsAndAddToOthers) {
  for (const auto& [dtype, buffers] : {std::pair{at::kDouble, at::kDouble}, std::pair{at::kBFloat16, at::kFloat}}) {
    ExpertCase shape = random_case();  // the last expert has no rows
    shape.biases = true;
    const ExpertInputs inputs(shape, dtype, dtype), plain(shape, dtype, dtype);
    leave_unwritten(inputs, buffers);
    const void* const address = inputs.experts.gate_up.grad().data_ptr();
    results(shape, plain, false);
    const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-2;
    for (int times = 1; times <= 3; ++times) {
      results(shape, inputs, false);
      for (size_t i = 2; i < inputs.leaves().size(); ++i) {
        const at::Tensor found = inputs.leaves()[i].grad();
        EXPECT_LE(relative_error(found, plain.leaves()[i].grad().to(at::kDouble) * times), tolerance) << "leaf " << i;
        EXPECT_TRUE(found[shape.num_experts - 1].eq(0).all().item<bool>()) << "leaf " << i;
      }
    }
    EXPECT_EQ(inputs.experts.gate_up.grad().data_ptr(), address);
  }
}

TEST(Experts, MayBeFrozenInAnyPart) {
  ExpertCase shape = random_case();
  shape.biases = true;
  const ExpertInputs plain(shape, at::kDouble, at::kDouble);
  results(shape, plain, false);
  for (size_t frozen = 0; frozen < plain.leaves().size(); ++frozen) {
    for (const bool alone : {true, false}) {  // this leaf is frozen, or all others are
      const ExpertInputs inputs(shape, at::kDouble, at::kDouble);
      for (size_t i = 0; i < inputs.leaves().size(); ++i) inputs.leaves()[i].set_requires_grad((i == frozen) != alone);
      by_mixture(shape, inputs).backward(output_gradient(shape));
      for (size_t i = 0; i < inputs.leaves().size(); ++i) {
        const at::Tensor gradient = inputs.leaves()[i].grad();
        if ((i == frozen) == alone) {
          EXPECT_FALSE(gradient.defined()) << i;
        } else {
          EXPECT_LE(relative_error(gradient, plain.leaves()[i].grad()), 1e-12) << i << " without " << frozen;
        }
      }
    }
  }
}

TEST(Experts, GiveGradientsToWhoeverAsksForThem) {
  const ExpertCase shape = random_case();
  const ExpertInputs inputs(shape, at::kDouble, at::kDouble), plain(shape, at::kDouble, at::kDouble);
  leave_unwritten(inputs, at::kDouble);
  results(shape, plain, false);
  const auto found = torch::autograd::grad({by_mixture(shape, inputs)}, inputs.leaves(), {output_gradient(shape)});
  for (size_t i = 0; i < found.size(); ++i) EXPECT_LE(relative_error(found[i], plain.leaves()[i].grad()), 1e-12) << i;
  EXPECT_FALSE(GradientState::of(inputs.experts.down)->written());
}

TEST(Experts, MayLeaveTheGradientsOfWeightsForLater) {
  ExpertCase shape = random_case();
  shape.biases = true;
  const ExpertInputs inputs(shape, at::kFloat, at::kFloat), plain(shape, at::kFloat, at::kFloat);
  leave_unwritten(inputs, at::kFloat);
  leave_unwritten(plain, at::kFloat);
  results(shape, plain, false);
  DeferredGradients later;
  {
    const DeferringBackward defers(later);
    results(shape, inputs, false);
  }
  EXPECT_EQ(later.size(), 1U);
  EXPECT_FALSE(GradientState::of(inputs.experts.down)->written());
  later.compute();
  for (size_t i = 0; i < inputs.leaves().size(); ++i) {
    EXPECT_TRUE(at::equal(inputs.leaves()[i].grad(), plain.leaves()[i].grad())) << i;
  }
}

TEST(Experts, MayRunTheirBackwardTwice) {
  const ExpertCase shape = random_case();
  const ExpertInputs inputs(shape, at::kFloat, at::kFloat);
  const at::Tensor y = by_mixture(shape, inputs);
  const auto backward = [&] {
    return torch::autograd::grad({y}, inputs.leaves(), {output_gradient(shape, at::kFloat)}, /*retain_graph=*/true);
  };
  const std::vector<at::Tensor> first = backward(), second = backward();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
}

TEST(Experts, RefuseASecondDerivative) {
  const ExpertCase shape = random_case();
  const ExpertInputs inputs(shape, at::kDouble, at::kDouble);
  const at::Tensor y = by_mixture(shape, inputs).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {inputs.x}, {}, std::nullopt, /*create_graph=*/true), std::logic_error);
}

TEST(Experts, SumATokensRowsInTheOrderOfItsSlots) {
  // In fp32 1e8 + 1 - 1e8 is 0, and 1e8 - 1e8 + 1 is 1; so it is in fp64, which has no loops of its own, with 1e17.
  const at::Tensor choices = at::tensor({0, 2, 1, 0, 2, 1}, at::kLong).view({2, 3});
  const ExpertRows rows = sort_by_expert(choices, 3);
  for (const auto& [dtype, large] : {std::pair{at::kFloat, 1e8}, {at::kDouble, 1e17}}) {
    const at::Tensor values = at::tensor({large, 1.0, -large, large, -large, 1.0}, dtype).view({6, 1});  // of the pairs
    EXPECT_TRUE(
        at::equal(sum_of_slots(values.index_select(0, rows.slots), rows).flatten(), at::tensor({0.0, 1.0}, dtype)));
  }
}

}  // namespace
}  // namespace meshtrain::testing
