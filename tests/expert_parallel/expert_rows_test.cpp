#include "expert_parallel/expert_rows.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/device/aten.h"
#include "mesh/device/meta_device.h"

namespace meshtrain {
namespace {

at::Tensor longs(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

TEST(ExpertRows, AreSortedByExpertThenByToken) {
  const ExpertRows rows = sort_by_expert(longs({3, 0, 0, 3, 1, 0}).view({3, 2}), 5);
  EXPECT_EQ(rows.starts, GroupStarts({0, 3, 4, 4, 6, 6}));
  EXPECT_TRUE(at::equal(rows.counts, longs({3, 1, 0, 2, 0})));
  EXPECT_TRUE(at::equal(rows.slots, longs({1, 2, 5, 4, 0, 3})));
  EXPECT_TRUE(at::equal(rows.tokens, longs({0, 1, 2, 2, 0, 1})));
  EXPECT_TRUE(at::equal(rows.rows, longs({4, 0, 1, 5, 3, 2}).view({3, 2})));
  EXPECT_EQ(rows.num_slots(), 2);
}

TEST(ExpertRows, OfNoTokensAreNone) {
  const ExpertRows rows = sort_by_expert(at::empty({0, 2}, at::kLong), 3);
  EXPECT_EQ(rows.starts, GroupStarts({0, 0, 0, 0}));
  EXPECT_EQ(rows.counts.sum().item<int64_t>(), 0);
}

TEST(ExpertRows, RefuseWhatIsNoExpert) {
  EXPECT_THROW(sort_by_expert(longs({0, 4}).view({1, 2}), 3), std::invalid_argument);
  EXPECT_THROW(sort_by_expert(longs({0, -1}).view({1, 2}), 3), std::invalid_argument);
}

TEST(ExpertRows, OfMetaTensorsAreBalanced) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const MetaDeviceGuard stands_for(device);
    const ExpertRows rows = sort_by_expert(at::empty({7, 2}, at::TensorOptions(at::kLong).device(at::kMeta)), 4);
    EXPECT_EQ(rows.starts, GroupStarts({0, 4, 8, 11, 14}));
    EXPECT_EQ(rows.slots.size(0), 14);
    EXPECT_EQ(rows.tokens.size(0), 14);
    EXPECT_EQ(rows.counts.size(0), 4);
  }
}

TEST(ExpertRows, OfHalvesAreSummedInFp32) {
  // 256 + 1 is 256 in bf16, and 2048 + 1 is 2048 in fp16, which has no loops of its own.
  for (const auto& [dtype, slots] : {std::pair<at::ScalarType, int64_t>{at::kBFloat16, 400}, {at::kHalf, 4000}}) {
    const ExpertRows rows = sort_by_expert(at::arange(slots, at::kLong).view({1, slots}), slots);
    EXPECT_EQ(sum_of_slots(at::ones({slots, 3}, dtype), rows)[0][2].item<int64_t>(), slots) << dtype;
    const at::Tensor x = at::ones({1, 3}, dtype).requires_grad_();
    rows_of_tokens(x, rows).backward(at::ones({slots, 3}, dtype));
    EXPECT_EQ(x.grad()[0][1].item<int64_t>(), slots) << dtype;
  }
}

}  // namespace
}  // namespace meshtrain
