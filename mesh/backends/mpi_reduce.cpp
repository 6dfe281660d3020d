#include "mesh/backends/mpi_reduce.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <bit>

/// Into functions for other processors too, which do not call those for all.
#define MESHTRAIN_INLINE __attribute__((always_inline)) inline

namespace meshtrain {
namespace {

/// c10::BFloat16 with its conversions, and their bits, in a form that compilers vectorise.
struct Bf16 {
  uint16_t bits;

  Bf16() = default;
  explicit MESHTRAIN_INLINE Bf16(float value) {
    const auto wide = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;  // to nearest, ties to even
    const bool is_nan = (wide & 0x7fffffff) > 0x7f800000;
    bits = static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
  explicit MESHTRAIN_INLINE operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

template <Reduce op, typename Sum>
MESHTRAIN_INLINE Sum combined(Sum a, Sum b) {
  if constexpr (op == Reduce::Sum) {
    return a + b;
  } else {
    return b > a || b != b ? b : a;
  }
}

template <typename Element, typename Sum, typename Result, Reduce op>
MESHTRAIN_INLINE void reduce_blocks(const std::byte* const* parts, int ranks, std::byte* output, int64_t count) {
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
    Result* result = reinterpret_cast<Result*>(output) + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) result[i] = static_cast<Result>(sums[i]);
  }
}

template <typename Element, typename Sum, typename Result, Reduce op>
void reduce(const std::byte* const* parts, int ranks, std::byte* output, int64_t count) {
  reduce_blocks<Element, Sum, Result, op>(parts, ranks, output, count);
}

#ifdef __x86_64__
/// The same sums, and bits, by wider instructions than every processor has.
template <typename Element, typename Sum, typename Result, Reduce op>
__attribute__((target("avx2"))) void reduce_avx2(const std::byte* const* parts, int ranks, std::byte* output,
                                                 int64_t count) {
  reduce_blocks<Element, Sum, Result, op>(parts, ranks, output, count);
}
#endif

template <typename Element, typename Sum, typename Result>
ReduceKernel kernel(Reduce op) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) {
    return op == Reduce::Sum ? reduce_avx2<Element, Sum, Result, Reduce::Sum>
                             : reduce_avx2<Element, Sum, Result, Reduce::Max>;
  }
#endif
  return op == Reduce::Sum ? reduce<Element, Sum, Result, Reduce::Sum> : reduce<Element, Sum, Result, Reduce::Max>;
}

/// Calls `choose` with an element of the dtype and one of the dtype that it is accumulated in.
template <typename Choose>
ReduceKernel by_dtype(at::ScalarType dtype, Choose choose) {
  switch (dtype) {
    case at::kDouble:
      return choose(double{}, double{});
    case at::kFloat:
      return choose(float{}, float{});
    case at::kLong:
      return choose(int64_t{}, int64_t{});
    case at::kBFloat16:
      return choose(Bf16{}, float{});
    case at::kHalf:
      return choose(c10::Half{}, float{});
    default:
      return nullptr;
  }
}

}  // namespace

ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce op) {
  return by_dtype(dtype, [&]<typename E, typename S>(E, S) { return kernel<E, S, E>(op); });
}

at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

ReduceKernel partial_kernel(at::ScalarType dtype, Reduce op) {
  return by_dtype(dtype, [&]<typename E, typename S>(E, S) { return kernel<E, S, S>(op); });
}

ReduceKernel rounding_kernel(at::ScalarType dtype) {
  return by_dtype(dtype, []<typename E, typename S>(E, S) { return kernel<S, S, E>(Reduce::Sum); });
}

}  // namespace meshtrain
