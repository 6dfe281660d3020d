#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain {

/// The sets of instructions that loops are compiled for (host_lanes.h).
enum class LaneSet { None, Avx2, Avx512 };

/// Returns the set for loops over elements of `dtype`, fp32 or bf16, on this processor, as far as LibTorch uses it:
/// ATEN_CPU_CAPABILITY=avx2 in the environment, which a measurement or a test of what other processors compute sets,
/// holds for both.
LaneSet lane_set(at::ScalarType dtype);

/// Returns true when there are loops over elements of `dtype` for this processor.
inline bool has_lanes(at::ScalarType dtype) {
  return lane_set(dtype) != LaneSet::None;
}

/// Returns compute(set) for lane_set(dtype), which is not None: set is Avx2() or Avx512().
template <class Compute>
auto with_lanes(at::ScalarType dtype, const Compute& compute) -> decltype(compute(Avx2())) {
#if defined(__x86_64__)
  return lane_set(dtype) == LaneSet::Avx512 ? compute(Avx512()) : compute(Avx2());
#else
  TORCH_INTERNAL_ASSERT(false, "there are no loops over elements of ", dtype);
#endif
}

/// Elements of the smallest range that a thread gets (LibTorch's at::internal::GRAIN_SIZE).
constexpr int64_t kHostGrain = 32768;

/// Calls loop(first, count) for ranges of rows of `size` elements, on LibTorch's threads when they are many.
template <class Loop>
void for_row_ranges(int64_t rows, int64_t size, const Loop& loop) {
  const int64_t grain = std::max<int64_t>(1, kHostGrain / std::max<int64_t>(size, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) { loop(begin, end - begin); });
}

/// Calls `loop` as for_row_ranges() does, with the set of instructions and the type of elements before the range, for
/// rows of tensors like `like`, for which has_lanes(). Of the Meta device there is nothing to compute.
template <class Loop>
void for_lane_rows(const at::Tensor& like, int64_t rows, int64_t size, const Loop& loop) {
  if (like.is_meta()) return;
  with_lanes(like.scalar_type(), [&](auto set) {
    for_row_ranges(rows, size, [&](int64_t first, int64_t count) {
      like.scalar_type() == at::kFloat ? loop(set, float(), first, count) : loop(set, c10::BFloat16(), first, count);
    });
  });
}

}  // namespace meshtrain
