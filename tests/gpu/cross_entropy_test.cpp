#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tensor_parallel/cross_entropy_rows.h"
#include "tests/gpu/reference.h"

namespace meshtrain {
namespace {

using namespace testing;

/// Labels of which some are another rank's, and some ignored; on the host.
RowLabels labels_of(int64_t rows, int64_t columns) {
  const at::Tensor ignored = at::rand({rows}) < 0.2, absent = (at::rand({rows}) < 0.3).bitwise_or_(ignored);
  return {at::randint(columns, {rows}, at::kLong).masked_fill_(absent, 0), absent, ignored};
}

TEST(CrossEntropyOnGpu, IsAsOnTheHost) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 8},
                                        {1, 1},
                                        {3, 5},
                                        {7, 1000},
                                        {many(300), 50257},
                                        {many(17), 151936},
                                        {many(5000), 33},
                                        {many(5000), 1500}}) {
      const RowLabels host = labels_of(rows, columns);
      const RowLabels device{host.column.to(gpu()), host.absent.to(gpu()), host.ignored.to(gpu())};
      const at::Tensor logits = fresh({rows, columns}).mul_(8).to(dtype).to(gpu());
      const at::Tensor wide = logits.to(at::kCPU).to(at::kDouble);
      const std::string what = c10::str(logits.sizes(), " ", dtype);

      poison({at::empty({rows}, at::kFloat)});
      const at::Tensor max = row_maxima(logits), wide_max = row_maxima(wide);
      EXPECT_TRUE(at::equal(max.to(at::kCPU).to(at::kDouble), wide_max)) << what;
      const at::Tensor sums = at::full({2, rows}, NAN, max.options()), wide_sums = at::zeros({2, rows}, at::kDouble);
      row_sums(logits, max, device, sums);
      row_sums(wide, wide_max, host, wide_sums);
      EXPECT_LE(error_of(sums[0], wide_sums[0]), 1e-5) << what;
      EXPECT_LE(error_of(sums[1], wide_sums[1]), 0) << what;
      row_gradients(logits, max, sums[0], device, at::full({}, 0.01, max.options()));
      row_gradients(wide, wide_max, wide_sums[0], host, at::full({}, 0.01, at::kDouble));
      EXPECT_LE(error_of(logits, wide), tolerance) << what;
    }
  }
}

TEST(CrossEntropyOnGpu, WhatIsNoNumberIsTheLargest) {
  at::Tensor logits = fresh({3, 5000}).to(at::kFloat).to(gpu());
  logits[1][4321] = NAN;
  const at::Tensor max = row_maxima(logits).to(at::kCPU);
  EXPECT_TRUE(at::equal(max.isnan(), at::tensor({0, 1, 0}, at::kLong).to(at::kBool)));
}

}  // namespace
}  // namespace meshtrain
