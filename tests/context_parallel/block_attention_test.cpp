#include "context_parallel/block_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::DtypeTolerance;
using testing::random_tensor;
using testing::relative_error;

constexpr double kBlockScale = 0.5;
const std::vector<DtypeTolerance> kBlockPrecisions = {{at::kDouble, 1e-13}, {at::kFloat, 5e-5}, {at::kBFloat16, 2e-2}};

/// Queries 9 to 14 of a sequence whose keys are all positions from 0 on; their own keys are the last in `keys`.
struct Problem {
  explicit Problem(at::ScalarType dtype,
                   double spread = 30)  // large differences: a merge without a maximum would overflow
      : q(random_tensor({2, 4, 5, 8}, 1, dtype).mul(spread)),
        keys(random_tensor({2, 2, 14, 8}, 2, dtype).mul(spread)),
        values(random_tensor({2, 2, 14, 8}, 3, dtype)) {}

  ScoreBlock diagonal() const { return {0, 5, 9, 5, Pairs::Causal, 0, 2}; }
  ScoreBlock rectangle(int64_t key, int64_t num_keys) const { return {0, 5, key, num_keys, Pairs::All, 0, 2}; }

  /// Computes the result with one kernel call over the complete sequence, whose last 5 queries count.
  AttentionResult full() const {
    const at::Tensor padding = at::zeros({2, 4, 9, 8}, q.options());
    const AttentionResult all = attend(at::cat({padding, q}, 2), keys, values, Pairs::Causal, {kBlockScale});
    return {all.out.narrow(2, 9, 5), all.lse.narrow(2, 9, 5)};
  }

  at::Tensor q, keys, values;
};

TEST(RunningAttention, RectanglesInAnyOrderAreTheWhole) {
  for (const auto& [dtype, tolerance] : kBlockPrecisions) {
    const Problem problem(dtype);
    const AttentionResult full = problem.full();
    const std::vector<std::pair<int64_t, int64_t>> keys = {{0, 4}, {4, 1}, {5, 4}};
    std::vector<size_t> order = {0, 1, 2};
    do {
      RunningAttention running(problem.q, {kBlockScale});
      running.add(problem.diagonal(), problem.keys, problem.values);
      for (const size_t i : order) {
        running.add(problem.rectangle(keys[i].first, keys[i].second), problem.keys, problem.values);
      }
      const AttentionResult merged = running.finish();
      EXPECT_EQ(merged.out.scalar_type(), dtype);
      EXPECT_TRUE(merged.out.transpose(1, 2).is_contiguous());
      EXPECT_LE(relative_error(merged.out, full.out), tolerance) << dtype;
      EXPECT_LE(relative_error(merged.lse, full.lse), tolerance) << dtype;
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(RunningAttention, QueriesHaveKeysOfTheirOwn) {
  const Problem problem(at::kDouble);
  const AttentionResult full = problem.full();
  RunningAttention running(problem.q, {kBlockScale});
  running.add(ScoreBlock{3, 2, 12, 2, Pairs::Causal, 0, 2}, problem.keys, problem.values);
  running.add(ScoreBlock{0, 3, 9, 3, Pairs::Causal, 0, 1}, problem.keys, problem.values);
  running.add(ScoreBlock{0, 3, 9, 3, Pairs::Causal, 1, 1}, problem.keys, problem.values);
  running.add(ScoreBlock{3, 2, 9, 3, Pairs::All, 0, 2}, problem.keys, problem.values);
  running.add(problem.rectangle(0, 9), problem.keys, problem.values);
  const AttentionResult merged = running.finish();
  EXPECT_LE(relative_error(merged.out, full.out), 1e-13);
  EXPECT_LE(relative_error(merged.lse, full.lse), 1e-13);
}

TEST(RunningAttention, HalvesAreMergedInFp32) {
  const Problem problem(at::kBFloat16, /*spread=*/1);
  const at::Tensor q = problem.q.narrow(2, 0, 1), k = random_tensor({2, 4, 64, 8}, 2, at::kBFloat16);
  const AttentionResult exact =
      attend(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble), Pairs::All, {kBlockScale});
  RunningAttention running(q, {kBlockScale});
  running.add(ScoreBlock{0, 1, 0, 1, Pairs::Causal, 0, 2}, k, k);
  for (int64_t i = 1; i < k.size(2); ++i) running.add(ScoreBlock{0, 1, i, 1, Pairs::All, 0, 2}, k, k);
  EXPECT_LE(relative_error(running.finish().out, exact.out), 1.0 / 256) << "one rounding, not 64";
}

TEST(RunningAttention, NoKeyYetIsAStateOfItsOwn) {
  const Problem problem(at::kDouble);
  RunningAttention none(problem.q, {kBlockScale});
  EXPECT_THROW(none.finish(), std::logic_error);
  EXPECT_THROW(none.add(problem.rectangle(0, 4), problem.keys, problem.values), std::logic_error);

  RunningAttention gap(problem.q, {kBlockScale});
  gap.add(ScoreBlock{0, 4, 9, 4, Pairs::Causal, 0, 2}, problem.keys, problem.values);
  EXPECT_THROW(gap.add(problem.rectangle(0, 4), problem.keys, problem.values), std::logic_error);
  EXPECT_THROW(gap.finish(), std::logic_error);
}

TEST(RunningGradients, BlocksInAnyOrderAreTheWhole) {
  for (const auto& [dtype, tolerance] : kBlockPrecisions) {
    const Problem problem(dtype, /*spread=*/1);
    const AttentionResult attended = problem.full();
    const at::Tensor grad = random_tensor({2, 4, 5, 8}, 4, dtype);
    const at::Tensor padded_q = at::cat({at::zeros({2, 4, 9, 8}, grad.options()), problem.q}, 2);
    const at::Tensor padded_grad = at::cat({at::zeros({2, 4, 9, 8}, grad.options()), grad}, 2);
    const AttentionResult all = attend(padded_q, problem.keys, problem.values, Pairs::Causal, {kBlockScale});
    const AttentionGradients full =
        attend_backward(padded_grad, padded_q, problem.keys, problem.values, all, Pairs::Causal, {kBlockScale});
    std::vector<ScoreBlock> blocks = {problem.rectangle(0, 4), problem.diagonal(), problem.rectangle(4, 5)};
    for (int turn = 0; turn < 3; ++turn) {
      RunningGradients running(grad, problem.q, {attended.out, attended.lse}, {kBlockScale});
      const at::Tensor dk = at::zeros_like(problem.keys, at::kDouble), dv = at::zeros_like(dk);
      for (const ScoreBlock& block : blocks) running.add(block, problem.keys, problem.values, dk, dv);
      EXPECT_LE(relative_error(running.queries(), full.q.narrow(2, 9, 5)), tolerance) << dtype;
      EXPECT_LE(relative_error(dk, full.k), tolerance) << dtype;
      EXPECT_LE(relative_error(dv, full.v), tolerance) << dtype;
      std::rotate(blocks.begin(), blocks.begin() + 1, blocks.end());
    }
  }
}

}  // namespace
}  // namespace meshtrain
