#pragma once

#include <immintrin.h>

#include <array>
#include <numeric>

// Included by host_lanes.h. Loops over floats use no instruction of avx512bf16, which fewer processors have.
#define MESHTRAIN_LANES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define MESHTRAIN_LANES_INLINE MESHTRAIN_LANES inline __attribute__((always_inline))
#define MESHTRAIN_LANES_SPACE avx512

namespace meshtrain {
inline namespace avx512 {

using ThisSet = Avx512;

/// Sixteen floats; + - * / are the compiler's.
using Lanes = __m512;

/// Some of sixteen lanes.
using Mask = __mmask16;

/// Sixteen doubles: of the first eight lanes, and of the others.
struct WideLanes {
  __m512d low, high;
};

/// Returns the mask of lanes below `count`, which may be below 0 or above kLanes.
MESHTRAIN_LANES_INLINE Mask lanes_below(int64_t count) {
  return count >= kLanes ? Mask{0xFFFF} : count <= 0 ? Mask{0} : static_cast<Mask>((1U << count) - 1);
}

MESHTRAIN_LANES_INLINE Lanes broadcast(float value) {
  return _mm512_set1_ps(value);
}

MESHTRAIN_LANES_INLINE Lanes widened(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// Rounds to nearest even.
MESHTRAIN_LANES_INLINE __m256i rounded(Lanes values) {
  return (__m256i)_mm512_cvtneps_pbh(values);
}

MESHTRAIN_LANES_INLINE Lanes load(const float* from) {
  return _mm512_loadu_ps(from);
}

MESHTRAIN_LANES_INLINE Lanes load(const c10::BFloat16* from) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

MESHTRAIN_LANES_INLINE void store(float* to, Lanes values) {
  _mm512_storeu_ps(to, values);
}

MESHTRAIN_LANES_INLINE void store(c10::BFloat16* to, Lanes values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(values));
}

/// Loads and stores `lanes` alone, the first ones, which may end where the memory does; the others are zeros.
MESHTRAIN_LANES_INLINE Lanes load_some(const float* from, Mask lanes) {
  return _mm512_maskz_loadu_ps(lanes, from);
}

MESHTRAIN_LANES_INLINE Lanes load_some(const c10::BFloat16* from, Mask lanes) {
  return widened(_mm256_maskz_loadu_epi16(lanes, from));
}

MESHTRAIN_LANES_INLINE void store_some(float* to, Mask lanes, Lanes values) {
  _mm512_mask_storeu_ps(to, lanes, values);
}

MESHTRAIN_LANES_INLINE void store_some(c10::BFloat16* to, Mask lanes, Lanes values) {
  _mm256_mask_storeu_epi16(to, lanes, rounded(values));
}

/// Returns `values` in `lanes`, and those of `others` elsewhere.
MESHTRAIN_LANES_INLINE Lanes chosen(Mask lanes, Lanes values, Lanes others) {
  return _mm512_mask_mov_ps(others, lanes, values);
}

/// Computes a b + c, a b - c and c - a b with one rounding.
MESHTRAIN_LANES_INLINE Lanes fmadd(Lanes a, Lanes b, Lanes c) {
  return _mm512_fmadd_ps(a, b, c);
}

MESHTRAIN_LANES_INLINE Lanes fmsub(Lanes a, Lanes b, Lanes c) {
  return _mm512_fmsub_ps(a, b, c);
}

MESHTRAIN_LANES_INLINE Lanes fnmadd(Lanes a, Lanes b, Lanes c) {
  return _mm512_fnmadd_ps(a, b, c);
}

MESHTRAIN_LANES_INLINE Lanes larger_of(Lanes a, Lanes b) {
  return _mm512_max_ps(a, b);
}

MESHTRAIN_LANES_INLINE Lanes square_root_of(Lanes values) {
  return _mm512_sqrt_ps(values);
}

MESHTRAIN_LANES_INLINE float sum_of(Lanes values) {
  return _mm512_reduce_add_ps(values);
}

MESHTRAIN_LANES_INLINE float largest_of(Lanes values) {
  return _mm512_reduce_max_ps(values);
}

MESHTRAIN_LANES_INLINE Lanes nearest_integers(Lanes values) {
  return _mm512_roundscale_ps(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/// Computes values 2^exponents. The result is 0 for exponents = -inf and infinity for exponents = inf, even when the
/// value is NaN.
MESHTRAIN_LANES_INLINE Lanes times_power_of_two(Lanes values, Lanes exponents) {
  return _mm512_scalef_ps(values, exponents);
}

MESHTRAIN_LANES_INLINE WideLanes wide_zeros() {
  return {_mm512_setzero_pd(), _mm512_setzero_pd()};
}

/// Adds the squares of floats, which fp64 holds exactly.
MESHTRAIN_LANES_INLINE WideLanes add_squares(WideLanes sums, Lanes values) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(values));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1));
  return {_mm512_fmadd_pd(low, low, sums.low), _mm512_fmadd_pd(high, high, sums.high)};
}

MESHTRAIN_LANES_INLINE double sum_of(WideLanes a, WideLanes b) {
  std::array<double, kLanes / 2> sums;
  _mm512_storeu_pd(sums.data(), _mm512_add_pd(_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)));
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Transposes 16 x 16 words in registers: 4 x 4 words inside of quarters first, then the quarters.
MESHTRAIN_LANES_INLINE void transpose_block(Lanes (&rows)[kLanes]) {
  Lanes quads[kLanes];
  for (int i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(rows[i], rows[i + 1]), b = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quads[i] = _mm512_shuffle_ps(a, c, 0x44);
    quads[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
    quads[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    quads[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(quads[i], quads[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(quads[i + 8], quads[i + 12], 0xDD);
    rows[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    rows[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

}  // namespace avx512
}  // namespace meshtrain
