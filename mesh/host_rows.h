#pragma once

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

#include "mesh/host_lanes.h"

namespace meshtrain {

/// Returns true when LibTorch's kernels use AVX-512: not with ATEN_CPU_CAPABILITY=avx2 in the environment, which a
/// measurement or a test of what other processors compute sets.
inline bool libtorch_uses_avx512() {
  static const bool uses = at::get_cpu_capability().starts_with("AVX512");
  return uses;
}

/// Returns true when this processor has the instructions of loops (host_lanes.h) over elements of `dtype`, fp32 or
/// bf16, and LibTorch uses them.
inline bool has_lanes(at::ScalarType dtype) {
  if (!libtorch_uses_avx512()) return false;
  return dtype == at::kFloat ? has_lanes<float>() : dtype == at::kBFloat16 && has_lanes<c10::BFloat16>();
}

/// Calls loop(first, count) for ranges of rows of `size` elements, on LibTorch's threads when they are many.
template <class Loop>
void for_row_ranges(int64_t rows, int64_t size, const Loop& loop) {
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(size, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) { loop(begin, end - begin); });
}

}  // namespace meshtrain
