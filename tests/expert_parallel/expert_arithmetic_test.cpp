#include "expert_parallel/expert_arithmetic.h"

#include <gtest/gtest.h>

#include <limits>

#include "expert_parallel/leaf_gradients.h"
#include "tests/expert_parallel/naive.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// The results of both passes, and the number of blocks of the backward.
struct Passes {
  at::Tensor y, dx, d_weights;
  std::vector<at::Tensor> leaves;
  int blocks = 0;
  bool keeps;
};

/// Computes rows of experts 0, 2 and 3 of five, whose buffers hold NaN before.
Passes passes(int64_t rows_of_block, bool recompute) {
  const GroupStarts starts = {0, 9, 9, 10, 23, 23};
  ExpertCase shape;
  shape.tokens = starts.back();
  shape.biases = true;
  shape.clamped = true;
  const ExpertInputs inputs(shape, at::kDouble, at::kDouble);
  const ExpertLayer layer{inputs.experts, activation_of(shape), recompute, rows_of_block};
  const at::Tensor x = inputs.x.detach(), weights = inputs.weights.detach().select(1, 0).contiguous();

  const at::NoGradGuard no_grad;
  Passes result;
  ExpertActivations kept;
  result.y = expert_forward(layer, x, weights, starts, kept);
  result.keeps = kept.gate_up.defined();
  for (const at::Tensor& leaf : ExpertLeaves::of(inputs.experts)) {
    result.leaves.push_back(at::full_like(leaf, std::numeric_limits<double>::quiet_NaN()));
  }
  const auto use = [&](const ExpertOperands& operands) {
    const bool unwritten = result.blocks++ == 0;
    add_grouped_product(result.leaves[0], operands.d_gate_up, operands.x(), operands.starts, unwritten);
    add_grouped_product(result.leaves[1], operands.dy, operands.weighted, operands.starts, unwritten);
  };
  const ExpertGradients gradients = expert_backward(
      layer, [&] { return x; }, weights, starts, kept, random_tensor({shape.tokens, shape.width}, 60), {}, use);
  if (gradients.operands) use(*gradients.operands);
  result.dx = gradients.x;
  result.d_weights = gradients.weights;
  result.leaves.resize(2);
  return result;
}

TEST(ExpertArithmetic, InBlocksIsThatOfAllRowsAtOnce) {
  for (const bool recompute : {false, true}) {
    const Passes at_once = passes(0, recompute);
    EXPECT_TRUE(at_once.keeps);
    for (const int64_t rows : {1, 4, 10, 23, 100}) {
      SCOPED_TRACE(rows);
      const Passes in_blocks = passes(rows, recompute);
      EXPECT_FALSE(in_blocks.keeps);
      EXPECT_EQ(in_blocks.blocks, (23 + rows - 1) / rows);
      EXPECT_LE(relative_error(in_blocks.y, at_once.y), 1e-14);
      EXPECT_LE(relative_error(in_blocks.dx, at_once.dx), 1e-14);
      EXPECT_LE(relative_error(in_blocks.d_weights, at_once.d_weights), 1e-14);
      for (size_t leaf = 0; leaf < at_once.leaves.size(); ++leaf) {
        EXPECT_LE(relative_error(in_blocks.leaves[leaf], at_once.leaves[leaf]), 1e-14);
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
