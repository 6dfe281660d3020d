#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

/// Sixteen floats at a time, for loops over memory that LibTorch's operators would pass several times. A file with such
/// loops, NAME_host.cpp, needs no other LibTorch header. It is compiled once for each set of instructions, as
/// meshtrain_lanes() of cmake/Floor.cmake arranges, and instantiates its functions for ThisSet alone; host_rows.h
/// chooses the set of this processor when they are called. Both sets compute the same bits, but for the sign of NaN and
/// for halves whose values before rounding are below the smallest normal float.
namespace meshtrain {

/// A processor with AVX2 and FMA: two registers of eight floats. bf16 is rounded by arithmetic on integers.
struct Avx2 {};

/// A processor with AVX-512 (F, BW, DQ, VL; AVX512_BF16 too for loops over bf16): a register of sixteen floats. Floats
/// below the smallest normal one are zeros when they are stored as halves.
struct Avx512 {};

inline constexpr int64_t kLanes = 16;

/// Returns `count` rounded up to full registers.
constexpr int64_t padded(int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

}  // namespace meshtrain

// Defines, in a file with loops, MESHTRAIN_LANES, for each declaration of a function with loops, ThisSet, Lanes and
// functions of them.
#if defined(__x86_64__) && defined(MESHTRAIN_LOOPS_AVX512)
#include "mesh/device/host_lanes_avx512.h"
#elif defined(__x86_64__) && defined(MESHTRAIN_LOOPS_AVX2)
#include "mesh/device/host_lanes_avx2.h"
#else
#define MESHTRAIN_LANES
#endif

#if defined(MESHTRAIN_LANES_INLINE)

namespace meshtrain {
inline namespace MESHTRAIN_LANES_SPACE {

/// Rounds values to the precision of T.
template <class T>
MESHTRAIN_LANES_INLINE Lanes rounded_to(Lanes values) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return values;
  } else {
    return widened(rounded(values));
  }
}

/// Computes 2^x: a polynomial of degree 6 that interpolates 2^x in [-0.5, 0.5], relative error 2.6e-9 before rounding;
/// 0 for x = -inf, infinity for x = inf.
MESHTRAIN_LANES_INLINE Lanes exp2_of(Lanes x) {
  const Lanes nearest = nearest_integers(x), rest = x - nearest;
  Lanes power = broadcast(1.5461444724808513e-4F);
  power = fmadd(power, rest, broadcast(1.3400428177711937e-3F));
  power = fmadd(power, rest, broadcast(9.61805667843204e-3F));
  power = fmadd(power, rest, broadcast(5.550327226669895e-2F));
  power = fmadd(power, rest, broadcast(2.4022650922289554e-1F));
  power = fmadd(power, rest, broadcast(6.931472067028329e-1F));
  power = fmadd(power, rest, broadcast(1));
  return times_power_of_two(power, nearest);
}

}  // namespace MESHTRAIN_LANES_SPACE
}  // namespace meshtrain

#endif
