#include "mesh/backends/mpi/reduce.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <type_traits>

/// Inlined into functions compiled for other processors too, which cannot call functions compiled for all.
#define MESHTRAIN_INLINE __attribute__((always_inline)) inline

namespace meshtrain {
namespace {

/// c10::BFloat16 as its bits: compilers vectorise these conversions, and neither c10's nor a class's own.
enum class Bf16 : uint16_t {};

template <typename Sum, typename Element>
MESHTRAIN_INLINE Sum widened(Element value) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
  } else {
    return static_cast<Sum>(value);
  }
}

/// Rounds to nearest, ties to even; a NaN becomes c10's.
template <typename Element, typename Sum>
MESHTRAIN_INLINE Element rounded(Sum value) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<Bf16>(is_nan ? 0x7fc0 : nearest);
  } else {
    return static_cast<Element>(value);
  }
}

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
    for (int64_t i = 0; i < n; ++i) sums[i] = widened<Sum>(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const Element* part = reinterpret_cast<const Element*>(parts[rank]) + begin;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sums[i] = combined<op>(sums[i], widened<Sum>(part[i]));
    }
    Result* result = reinterpret_cast<Result*>(output) + begin;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) result[i] = rounded<Result>(sums[i]);
  }
}

template <typename Element, typename Sum, typename Result, Reduce op>
void reduce(const std::byte* const* parts, int ranks, std::byte* output, int64_t count) {
  reduce_blocks<Element, Sum, Result, op>(parts, ranks, output, count);
}

#ifdef __x86_64__
/// Computes the same sums, bit for bit, by wider instructions than every processor has.
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

at::ScalarType dtype_of_sums(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

ReduceKernel partial_kernel(at::ScalarType dtype, Reduce op) {
  return by_dtype(dtype, [&]<typename E, typename S>(E, S) { return kernel<E, S, S>(op); });
}

ReduceKernel rounding_kernel(at::ScalarType dtype, Reduce op) {
  return by_dtype(dtype, [&]<typename E, typename S>(E, S) { return kernel<S, S, E>(op); });
}

}  // namespace meshtrain
