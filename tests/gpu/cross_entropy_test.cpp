#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/operators/cross_entropy_rows.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

/// Returns labels on the host; another rank has some of them, and some are ignored.
RowLabels labels_of(int64_t rows, int64_t columns) {
  at::Tensor ignored = at::rand({rows}) < 0.2, absent = (at::rand({rows}) < 0.3).bitwise_or_(ignored);
  if (rows > 0) {  // a gradient that does not cancel, so that errors are relative to it
    ignored[0] = false;
    absent[0] = true;
  }
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
      const at::Tensor statistics = row_statistics(logits, device), wide_statistics = row_statistics(wide, host);
      const at::Tensor max = statistics[0], wide_max = wide_statistics[0];
      EXPECT_TRUE(at::equal(max.to(at::kCPU).to(at::kDouble), wide_max)) << what;
      EXPECT_LE(error_of(statistics[1], wide_statistics[1]), 1e-5) << what;
      EXPECT_LE(error_of(statistics[2], wide_statistics[2]), 0) << what;
      row_gradients(logits, max, max, statistics[1], device, at::full({}, 0.01, max.options()));
      row_gradients(wide, wide_max, wide_max, wide_statistics[1], host, at::full({}, 0.01, at::kDouble));
      EXPECT_LE(error_of(logits, wide), tolerance) << what;
    }
  }
}

/// Returns labels of the first column, in all rows.
RowLabels first_columns(int64_t rows) {
  const at::Tensor none = at::zeros({rows}, at::kBool).to(gpu());
  return {at::zeros({rows}, at::kLong).to(gpu()), none, none};
}

TEST(CrossEntropyOnGpu, WhatIsNoNumberIsTheLargest) {
  at::Tensor logits = fresh({3, 5000}).to(at::kFloat).to(gpu());
  logits[1][4321] = NAN;
  const at::Tensor statistics = row_statistics(logits, first_columns(3)).to(at::kCPU);
  const at::Tensor expected = at::tensor({0, 1, 0}, at::kLong).to(at::kBool);
  EXPECT_TRUE(at::equal(statistics[0].isnan(), expected));
  EXPECT_TRUE(at::equal(statistics[1].isnan(), expected));
}

// Fewer columns than threads, whose sums are empty; masked logits; the largest comes last.
TEST(CrossEntropyOnGpu, SumsFarFromZero) {
  for (const int64_t columns : {int64_t{3}, int64_t{5000}}) {
    at::Tensor wide = fresh({5, columns});
    wide[0].sub_(1e4);
    wide[1].add_(1e4);
    wide[2].fill_(-INFINITY);
    wide[3].slice(0, 0, columns - 1).fill_(-INFINITY);
    wide[4].copy_(at::arange(columns));
    wide = wide.to(at::kFloat).to(at::kDouble);
    const at::Tensor seen = row_statistics(wide.to(at::kFloat).to(gpu()), first_columns(5)).to(at::kCPU);
    const at::Tensor max = wide.amax(1), origin = max.masked_fill(max.eq(-INFINITY), 0);
    EXPECT_TRUE(at::equal(seen[0].to(at::kDouble), max));
    EXPECT_LE(error_of(seen[1], (wide - origin.unsqueeze(1)).exp().sum(1)), 1e-5);
  }
}

}  // namespace
}  // namespace meshtrain::testing
