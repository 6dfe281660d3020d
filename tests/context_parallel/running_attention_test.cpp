#include "context_parallel/running_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Precision;
using testing::random_tensor;
using testing::relative_error;

constexpr double kScale = 0.5;
const std::vector<Precision> kPrecisions = {{at::kDouble, 1e-14}, {at::kFloat, 2e-6}, {at::kBFloat16, 2e-2}};

Attended room(int64_t num_queries, const Attended& like) {
  return {at::full({2, 4, num_queries, 8}, 7, like.out.options()),
          at::full({2, 4, num_queries}, 7, like.lse.options())};
}

TEST(RunningAttention, BlocksInAnyOrderAreTheWhole) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    // Scores far apart: a merge that forgot to subtract a maximum would overflow.
    const at::Tensor q = random_tensor({2, 4, 5, 8}, 1, dtype).mul(30);
    const at::Tensor k = random_tensor({2, 2, 9, 8}, 2, dtype).mul(30), v = random_tensor({2, 2, 9, 8}, 3, dtype);
    const Attended whole = attend(q, k, v, false, kScale);
    const std::vector<std::pair<int64_t, int64_t>> keys = {{0, 4}, {4, 1}, {5, 4}};
    std::vector<size_t> order = {0, 1, 2};
    do {
      RunningAttention running;
      for (const size_t i : order) {
        const auto [start, size] = keys[i];
        running.add(0, attend(q, k.narrow(2, start, size), v.narrow(2, start, size), false, kScale));
      }
      const Attended merged = room(5, whole);
      running.finish(merged.out, merged.lse);
      EXPECT_LE(relative_error(merged.out, whole.out), tolerance) << dtype;
      EXPECT_LE(relative_error(merged.lse, whole.lse), tolerance) << dtype;
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(RunningAttention, QueriesGetTheirKeysAtDifferentTimes) {
  const at::Tensor q = random_tensor({2, 4, 6, 8}, 1), k = random_tensor({2, 4, 6, 8}, 2);
  const Attended whole = attend(q, k, k, true, kScale);
  RunningAttention running;
  const at::Tensor last = q.narrow(2, 4, 2), first = q.narrow(2, 0, 4);
  running.add(4, attend(last, k.narrow(2, 0, 4), k.narrow(2, 0, 4), false, kScale));
  running.add(0, attend(first, k.narrow(2, 0, 4), k.narrow(2, 0, 4), true, kScale));  // no key before this one
  running.add(4, attend(last, k.narrow(2, 4, 2), k.narrow(2, 4, 2), true, kScale));
  const Attended merged = room(6, whole);
  running.finish(merged.out, merged.lse);
  EXPECT_LE(relative_error(merged.out, whole.out), 1e-14);
  EXPECT_LE(relative_error(merged.lse, whole.lse), 1e-14);
}

TEST(RunningAttention, RefusesBlocksThatOverlap) {
  const at::Tensor x = random_tensor({2, 4, 4, 8}, 1), half = x.narrow(2, 0, 2);
  const Attended block = attend(x, x, x, true, kScale), all = room(6, block);
  RunningAttention running;
  running.add(0, block);
  running.add(2, attend(half, half, half, true, kScale));  // as many queries as there are, but the last two have none
  EXPECT_THROW(running.finish(all.out, all.lse), std::logic_error);
}

TEST(RunningAttention, HalvesAreMergedInFp32) {
  const at::Tensor q = random_tensor({2, 4, 3, 8}, 1, at::kBFloat16),
                   k = random_tensor({2, 4, 64, 8}, 2, at::kBFloat16);
  const Attended exact = attend(q.to(at::kDouble), k.to(at::kDouble), k.to(at::kDouble), false, kScale);
  RunningAttention running;
  for (int64_t i = 0; i < k.size(2); ++i) {
    running.add(0, attend(q, k.narrow(2, i, 1), k.narrow(2, i, 1), false, kScale));
  }
  const Attended merged{at::empty({2, 4, 3, 8}, at::kBFloat16), at::empty({2, 4, 3}, at::kFloat)};
  running.finish(merged.out, merged.lse);
  EXPECT_LE(relative_error(merged.out, exact.out), 1.0 / 256) << "one rounding, not 64";
}

TEST(RunningAttention, RefusesQueriesWithoutKeys) {
  const at::Tensor x = random_tensor({2, 4, 2, 8}, 1);
  const Attended block = attend(x, x, x, true, kScale);
  const Attended all = room(6, block);
  RunningAttention running;
  EXPECT_THROW(running.finish(all.out, all.lse), std::logic_error) << "none at all";
  running.add(4, block);
  running.add(0, block);
  EXPECT_THROW(running.finish(all.out, all.lse), std::logic_error) << "a gap";
  running.add(2, block);
  running.finish(all.out, all.lse);
  EXPECT_THROW(running.add(2, attend(x.narrow(2, 0, 1), x, x, false, kScale)), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
