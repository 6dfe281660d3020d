#include "context_parallel/merge.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "tests/context_parallel/reference.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::relative_error;

/// The part's out in `dtype`, all other tensors in its accumulation dtype; heads are adjacent in memory.
struct Parts {
  explicit Parts(at::ScalarType dtype) {
    const at::ScalarType wide = accumulation_dtype(dtype);
    merged = {random_tensor({2, 5, 3, 8}, 1, wide).transpose(1, 2),
              random_tensor({2, 5, 3}, 2, wide).mul_(30).transpose(1, 2)};
    part = {random_tensor({2, 5, 3, 8}, 3, dtype).transpose(1, 2), random_tensor({2, 3, 5}, 4, wide).mul_(30)};
  }
  AttentionResult merged, part;
};

TEST(Merge, IsTheDefinition) {
  for (const auto& [dtype, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kDouble, 1e-13}, {at::kFloat, 2e-6}, {at::kBFloat16, 2e-6}, {at::kHalf, 2e-6}}) {
    const Parts parts(dtype);
    const at::Tensor before = parts.merged.lse.to(at::kDouble), added = parts.part.lse.to(at::kDouble);
    const at::Tensor lse = at::logaddexp(before, added);
    const at::Tensor out = parts.merged.out.to(at::kDouble) * (before - lse).exp().unsqueeze(-1) +
                           parts.part.out.to(at::kDouble) * (added - lse).exp().unsqueeze(-1);
    merge(parts.merged, parts.part);
    EXPECT_LE(relative_error(parts.merged.out, out), tolerance) << dtype;
    EXPECT_LE(relative_error(parts.merged.lse, lse), tolerance) << dtype;
  }
}

TEST(Merge, OfSomeQueriesLeavesTheOthers) {
  const Parts parts(at::kFloat), full(at::kFloat);
  const at::Tensor before = parts.merged.out.clone();
  merge(full.merged, full.part);
  const auto some = [](const AttentionResult& all) {
    return AttentionResult{all.out.narrow(2, 1, 2), all.lse.narrow(2, 1, 2)};
  };
  merge(some(parts.merged), some(parts.part));
  EXPECT_TRUE(at::equal(some(parts.merged).out, some(full.merged).out));
  EXPECT_TRUE(at::equal(parts.merged.out.narrow(2, 0, 1), before.narrow(2, 0, 1)));
  EXPECT_TRUE(at::equal(parts.merged.out.narrow(2, 3, 2), before.narrow(2, 3, 2)));
}

TEST(Merge, MetaTensorsAndNoQueries) {
  const Parts parts(at::kBFloat16);
  const auto meta = [](const AttentionResult& all) {
    return AttentionResult{all.out.to(at::kMeta), all.lse.to(at::kMeta)};
  };
  merge(meta(parts.merged), meta(parts.part));
  const auto none = [](const AttentionResult& all) {
    return AttentionResult{all.out.narrow(2, 0, 0), all.lse.narrow(2, 0, 0)};
  };
  merge(none(parts.merged), none(parts.part));
}

}  // namespace
}  // namespace meshtrain
