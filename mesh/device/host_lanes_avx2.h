#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

// Included by host_lanes.h.
#define MESHTRAIN_LANES __attribute__((target("avx2,fma")))
#define MESHTRAIN_LANES_INLINE MESHTRAIN_LANES inline __attribute__((always_inline))
#define MESHTRAIN_LANES_SPACE avx2

namespace meshtrain {
inline namespace avx2 {

using ThisSet = Avx2;

/// Sixteen floats.
struct Lanes {
  __m256 low, high;
};

/// The first `count` of sixteen lanes.
struct Mask {
  int64_t count;
};

/// Sixteen doubles: of the first eight lanes, and of the others.
struct WideLanes {
  __m256d low[2], high[2];
};

MESHTRAIN_LANES_INLINE Lanes operator+(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

MESHTRAIN_LANES_INLINE Lanes operator-(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

MESHTRAIN_LANES_INLINE Lanes operator*(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

MESHTRAIN_LANES_INLINE Lanes operator/(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

/// Returns the mask of lanes below `count`, which may be below 0 or above kLanes.
MESHTRAIN_LANES_INLINE Mask lanes_below(int64_t count) {
  return {std::clamp<int64_t>(count, 0, kLanes)};
}

/// Returns ones in the lanes of a mask, `first` (0 or 8) and seven more, zeros in the others.
MESHTRAIN_LANES_INLINE __m256i bits_of(Mask lanes, int first) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes.count) - first), index);
}

MESHTRAIN_LANES_INLINE Lanes broadcast(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}

MESHTRAIN_LANES_INLINE __m256 widened(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

MESHTRAIN_LANES_INLINE Lanes widened(__m256i halves) {
  return {widened(_mm256_castsi256_si128(halves)), widened(_mm256_extracti128_si256(halves, 1))};
}

/// Rounds to nearest even, NaN to a quiet one, as words whose upper parts are zeros.
MESHTRAIN_LANES_INLINE __m256i rounded_words(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
}

MESHTRAIN_LANES_INLINE __m256i rounded(Lanes values) {
  const __m256i quarters = _mm256_packus_epi32(rounded_words(values.low), rounded_words(values.high));
  return _mm256_permute4x64_epi64(quarters, 0xD8);
}

MESHTRAIN_LANES_INLINE Lanes load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

MESHTRAIN_LANES_INLINE Lanes load(const c10::BFloat16* from) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

MESHTRAIN_LANES_INLINE void store(float* to, Lanes values) {
  _mm256_storeu_ps(to, values.low);
  _mm256_storeu_ps(to + 8, values.high);
}

MESHTRAIN_LANES_INLINE void store(c10::BFloat16* to, Lanes values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(values));
}

/// Loads and stores `lanes` alone, the first ones, which may end where the memory does; the others are zeros.
MESHTRAIN_LANES_INLINE Lanes load_some(const float* from, Mask lanes) {
  if (lanes.count == kLanes) return load(from);
  return {_mm256_maskload_ps(from, bits_of(lanes, 0)), _mm256_maskload_ps(from + 8, bits_of(lanes, 8))};
}

MESHTRAIN_LANES_INLINE Lanes load_some(const c10::BFloat16* from, Mask lanes) {
  if (lanes.count == kLanes) return load(from);
  __m256i halves = _mm256_setzero_si256();
  std::memcpy(&halves, from, static_cast<size_t>(lanes.count) * sizeof(c10::BFloat16));
  return widened(halves);
}

MESHTRAIN_LANES_INLINE void store_some(float* to, Mask lanes, Lanes values) {
  if (lanes.count == kLanes) return store(to, values);
  _mm256_maskstore_ps(to, bits_of(lanes, 0), values.low);
  _mm256_maskstore_ps(to + 8, bits_of(lanes, 8), values.high);
}

MESHTRAIN_LANES_INLINE void store_some(c10::BFloat16* to, Mask lanes, Lanes values) {
  if (lanes.count == kLanes) return store(to, values);
  const __m256i halves = rounded(values);
  std::memcpy(to, &halves, static_cast<size_t>(lanes.count) * sizeof(c10::BFloat16));
}

/// Returns `values` in `lanes`, and those of `others` elsewhere.
MESHTRAIN_LANES_INLINE Lanes chosen(Mask lanes, Lanes values, Lanes others) {
  if (lanes.count == kLanes) return values;
  return {_mm256_blendv_ps(others.low, values.low, _mm256_castsi256_ps(bits_of(lanes, 0))),
          _mm256_blendv_ps(others.high, values.high, _mm256_castsi256_ps(bits_of(lanes, 8)))};
}

/// Computes a b + c, a b - c and c - a b with one rounding.
MESHTRAIN_LANES_INLINE Lanes fmadd(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

MESHTRAIN_LANES_INLINE Lanes fmsub(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}

MESHTRAIN_LANES_INLINE Lanes fnmadd(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

MESHTRAIN_LANES_INLINE Lanes larger_of(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

MESHTRAIN_LANES_INLINE Lanes square_root_of(Lanes values) {
  return {_mm256_sqrt_ps(values.low), _mm256_sqrt_ps(values.high)};
}

/// Adds in the order of the compiler's reduction of AVX-512: halves, then halves of those.
MESHTRAIN_LANES_INLINE float sum_of(Lanes values) {
  const __m256 eight = _mm256_add_ps(values.low, values.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

MESHTRAIN_LANES_INLINE float largest_of(Lanes values) {
  const __m256 eight = _mm256_max_ps(values.high, values.low);
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

MESHTRAIN_LANES_INLINE Lanes nearest_integers(Lanes values) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(values.low, kMode), _mm256_round_ps(values.high, kMode)};
}

/// Computes 2^exponents for exponents from -127, which gives 0, to 127.
MESHTRAIN_LANES_INLINE __m256 power_of_two(__m256i exponents) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponents, _mm256_set1_epi32(127)), 23));
}

/// Computes values 2^exponents for values near 1, in two steps, because some of the powers are not floats. The result
/// is 0 for exponents = -inf and infinity for exponents = inf, even when the value is NaN.
MESHTRAIN_LANES_INLINE __m256 times_power_of_two(__m256 values, __m256 exponents) {
  const __m256 most = _mm256_set1_ps(254), least = _mm256_set1_ps(-254);
  const __m256i exponent = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(exponents, least), most));
  const __m256i half = _mm256_srai_epi32(exponent, 1), rest = _mm256_sub_epi32(exponent, half);
  const __m256 product = _mm256_mul_ps(_mm256_mul_ps(values, power_of_two(half)), power_of_two(rest));
  const __m256 infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000));
  const __m256 limited = _mm256_blendv_ps(product, infinity, _mm256_cmp_ps(exponents, most, _CMP_GT_OQ));
  return _mm256_andnot_ps(_mm256_cmp_ps(exponents, least, _CMP_LT_OQ), limited);
}

MESHTRAIN_LANES_INLINE Lanes times_power_of_two(Lanes values, Lanes exponents) {
  return {times_power_of_two(values.low, exponents.low), times_power_of_two(values.high, exponents.high)};
}

MESHTRAIN_LANES_INLINE WideLanes wide_zeros() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero}, {zero, zero}};
}

/// Adds the squares of floats, which fp64 holds exactly.
MESHTRAIN_LANES_INLINE __m256d add_squares(__m256d sums, __m128 values) {
  const __m256d wide = _mm256_cvtps_pd(values);
  return _mm256_fmadd_pd(wide, wide, sums);
}

MESHTRAIN_LANES_INLINE WideLanes add_squares(WideLanes sums, Lanes values) {
  return {{add_squares(sums.low[0], _mm256_castps256_ps128(values.low)),
           add_squares(sums.low[1], _mm256_extractf128_ps(values.low, 1))},
          {add_squares(sums.high[0], _mm256_castps256_ps128(values.high)),
           add_squares(sums.high[1], _mm256_extractf128_ps(values.high, 1))}};
}

MESHTRAIN_LANES_INLINE double sum_of(WideLanes a, WideLanes b) {
  std::array<double, kLanes / 2> sums;
  for (int i = 0; i < 2; ++i) {
    const __m256d low = _mm256_add_pd(a.low[i], b.low[i]), high = _mm256_add_pd(a.high[i], b.high[i]);
    _mm256_storeu_pd(sums.data() + 4 * i, _mm256_add_pd(low, high));
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Transposes 8 x 8 words in registers: 4 x 4 words inside of halves first, then the halves.
MESHTRAIN_LANES_INLINE void transpose_eight(__m256 (&rows)[8]) {
  __m256 quads[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(rows[i], rows[i + 1]), b = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]), d = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quads[i] = _mm256_shuffle_ps(a, c, 0x44);
    quads[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    quads[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

/// Transposes 16 x 16 words: four blocks of 8 x 8, two of which change places.
MESHTRAIN_LANES_INLINE void transpose_block(Lanes (&rows)[kLanes]) {
  __m256 blocks[2][2][8];
  for (int i = 0; i < kLanes; ++i) {
    blocks[i / 8][0][i % 8] = rows[i].low;
    blocks[i / 8][1][i % 8] = rows[i].high;
  }
  for (auto& pair : blocks) {
    for (auto& block : pair) transpose_eight(block);
  }
  for (int i = 0; i < kLanes; ++i) rows[i] = {blocks[0][i / 8][i % 8], blocks[1][i / 8][i % 8]};
}

}  // namespace avx2
}  // namespace meshtrain
