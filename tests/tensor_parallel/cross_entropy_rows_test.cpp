#include "tensor_parallel/operators/cross_entropy_rows.h"

#include <gtest/gtest.h>

#include <limits>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/meta_device.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::relative_error;

constexpr int64_t kRows = 6, kColumns = 21;

/// Returns labels of a rank with the 21 ids from 100 on: one label of another rank, and one that is ignored.
RowLabels some_labels() {
  const at::Tensor column = at::tensor({0, 20, 5, 0, 0, 7}, at::kLong);
  const at::Tensor ignored = at::tensor({0, 0, 0, 0, 1, 0}, at::kLong).to(at::kBool);
  return {column, at::tensor({0, 0, 0, 1, 1, 0}, at::kLong).to(at::kBool), ignored};
}

// Another rank has the exponentials of 3 more ids.
TEST(CrossEntropyRows, AreTheDefinition) {
  for (const auto& [dtype, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
           {at::kDouble, 1e-13}, {at::kFloat, 2e-6}, {at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}}) {
    const RowLabels labels = some_labels();
    at::Tensor logits = random_tensor({kRows, kColumns}, 1, dtype).mul_(20);
    const at::Tensor wide = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor elsewhere = random_tensor({kRows, 3}, 2).mul_(20).to(dtype).to(at::kDouble);

    const at::Tensor statistics = row_statistics(logits, labels), own_max = statistics[0];
    EXPECT_EQ(statistics.scalar_type(), accumulation_dtype(dtype));
    EXPECT_TRUE(at::equal(own_max.to(at::kDouble), wide.amax(1)));
    const at::Tensor own_sum = (wide - wide.amax(1, /*keepdim=*/true)).exp().sum(1);
    const at::Tensor label_logit = wide.gather(1, labels.column.unsqueeze(1)).squeeze(1).masked_fill(labels.absent, 0);
    EXPECT_LE(relative_error(statistics[1], own_sum), 2e-6);
    EXPECT_TRUE(at::equal(statistics[2].to(at::kDouble), label_logit));

    const at::Tensor wide_max = at::cat({wide, elsewhere}, 1).amax(1), max = wide_max.to(own_max.scalar_type());
    const at::Tensor total = (at::cat({wide, elsewhere}, 1) - wide_max.unsqueeze(1)).exp().sum(1);
    const at::Tensor upstream = at::full({}, 0.3, max.options());
    row_gradients(logits, own_max, max, total.to(max.scalar_type()), labels, upstream);
    at::Tensor expected = 0.3 * (wide - wide_max.unsqueeze(1)).exp() / total.unsqueeze(1);
    expected.masked_fill_(labels.ignored.unsqueeze(1), 0);
    for (int64_t row = 0; row < kRows; ++row) {
      if (!labels.absent[row].item<bool>()) expected[row][labels.column[row].item<int64_t>()].sub_(0.3);
    }
    EXPECT_LE(relative_error(logits, expected), tolerance) << dtype;
  }
}

// -inf for a logit is a masked id. A row with only such logits on this rank adds nothing to the sum over all ranks.
TEST(CrossEntropyRows, TakeLogitsThatAreNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    at::Tensor logits = random_tensor({kRows, kColumns}, 1, dtype);
    logits[0].slice(0, 5).fill_(-kInfinity);
    logits[1].fill_(-kInfinity);
    logits[2][3] = kNan;
    logits[3].sub_(1e4);
    const at::Tensor statistics = row_statistics(logits, some_labels());
    EXPECT_TRUE(statistics[0].isnan().equal(at::tensor({0, 0, 1, 0, 0, 0}, at::kLong).to(at::kBool)));
    EXPECT_TRUE(statistics[1].isnan().equal(statistics[0].isnan()));
    EXPECT_EQ(statistics[0][1].item<double>(), -kInfinity);
    EXPECT_EQ(statistics[1][1].item<double>(), 0);
    EXPECT_GE(statistics[1][3].item<double>(), 1);
    const at::Tensor max = at::full({kRows}, 10, statistics.options());
    row_gradients(logits, statistics[0], max, at::ones_like(max), some_labels(), at::ones({}, max.options()));
    EXPECT_EQ(logits[1].abs().sum().item<double>(), 1) << "of the label alone";
    EXPECT_TRUE(logits[2].isnan().any().item<bool>());
    EXPECT_TRUE(logits[0].isfinite().all().item<bool>());
  }
}

TEST(CrossEntropyRows, MetaTensorsHaveTheFormOfCpuTensors) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const MetaDeviceGuard stands(device);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const RowLabels cpu = some_labels();
      const RowLabels labels{cpu.column.to(at::kMeta), cpu.absent.to(at::kMeta), cpu.ignored.to(at::kMeta)};
      const at::Tensor logits = at::empty({kRows, kColumns}, at::TensorOptions(at::kMeta).dtype(dtype));
      const at::Tensor statistics = row_statistics(logits, labels);
      EXPECT_EQ(statistics.sizes(), (at::IntArrayRef{3, kRows}));
      EXPECT_EQ(statistics.scalar_type(), accumulation_dtype(dtype));
      const at::Tensor max = at::empty_like(statistics[0]);
      row_gradients(logits, statistics[0], max, statistics[1], labels, at::ones({}, max.options()));
    }
  }
}

}  // namespace
}  // namespace meshtrain
