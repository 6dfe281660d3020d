#include <gtest/gtest.h>

#include "context_parallel/merge.h"
#include "mesh/device/aten.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

TEST(MergeOnGpu, IsAsOnTheHost) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const int64_t head_dim : {1, 7, 64, 128, 256, 520}) {
      for (const int64_t queries : {0, 1, 333}) {
        const at::Tensor out = fresh({2, queries, 5, head_dim}), part = fresh({2, queries, 5, head_dim}).to(dtype);
        const at::Tensor lse = fresh({2, queries, 5}).mul_(20), part_lse = fresh({2, 5, queries}).mul_(20);
        const auto run = [&](at::Device device, at::ScalarType wide, at::ScalarType of_part) {
          const AttentionResult merged{out.to(at::kFloat).to(wide).to(device).transpose(1, 2),
                                       lse.to(at::kFloat).to(wide).to(device).transpose(1, 2)};
          merge(merged, {part.to(of_part).to(device).transpose(1, 2), part_lse.to(at::kFloat).to(wide).to(device)});
          return merged;
        };
        const AttentionResult wanted = run(at::kCPU, at::kDouble, at::kDouble), seen = run(gpu(), at::kFloat, dtype);
        EXPECT_LE(error_of(seen.out, wanted.out), 1e-5) << dtype << " " << head_dim << " " << queries;
        EXPECT_LE(error_of(seen.lse, wanted.lse), 1e-6) << dtype << " " << head_dim << " " << queries;
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
