#include "mesh/backends/mpi_reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace meshtrain {
namespace {

template <Reduce op, typename Sum>
Sum combined(Sum a, Sum b) {
  if constexpr (op == Reduce::Sum) {
    return a + b;
  } else {
    return b > a || b != b ? b : a;
  }
}

template <typename Element, typename Sum, Reduce op>
void reduce(const std::byte* const* parts, int ranks, std::byte* output, int64_t count) {
  // Blocks that stay in the first cache level, and let the output be any of the parts.
  constexpr int64_t kBlock = 1024;
  alignas(64) Sum sums[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const Element* first = reinterpret_cast<const Element*>(parts[0]) + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const Element* part = reinterpret_cast<const Element*>(parts[rank]) + begin;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] = combined<op>(sums[i], static_cast<Sum>(part[i]));
    }
    Element* result = reinterpret_cast<Element*>(output) + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<Element>(sums[i]);
  }
}

template <typename Element, typename Sum = Element>
ReduceKernel kernel(Reduce op) {
  return op == Reduce::Sum ? reduce<Element, Sum, Reduce::Sum> : reduce<Element, Sum, Reduce::Max>;
}

}  // namespace

ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce op) {
  switch (dtype) {
    case at::kDouble:
      return kernel<double>(op);
    case at::kFloat:
      return kernel<float>(op);
    case at::kLong:
      return kernel<int64_t>(op);
    case at::kBFloat16:
      return kernel<c10::BFloat16, float>(op);
    case at::kHalf:
      return kernel<c10::Half, float>(op);
    default:
      return nullptr;
  }
}

}  // namespace meshtrain
