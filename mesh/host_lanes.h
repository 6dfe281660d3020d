#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Sixteen floats of a processor with AVX-512, for loops over memory that LibTorch's operators would pass several
/// times. A file with such loops needs no other LibTorch header, and the compile options that meshtrain_lanes() of
/// cmake/Floor.cmake gives it. Callers ask has_lanes() first. Halves are widened when they are loaded and rounded to
/// nearest even when they are stored, those smaller than the smallest normal one to zeros.
namespace meshtrain {

inline constexpr int64_t kLanes = 16;

/// Returns `count` rounded up to whole registers.
constexpr int64_t padded(int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

#if defined(__x86_64__)

/// Returns true when this processor has the instructions of loops over T, float or c10::BFloat16.
template <class T>
bool has_lanes() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

template <>
inline bool has_lanes<c10::BFloat16>() {
  static const bool has = has_lanes<float>() && __builtin_cpu_supports("avx512bf16");
  return has;
}

// For each declaration of a function with such loops. Those over floats use no instruction of avx512bf16, which fewer
// processors have.
#define MESHTRAIN_LANES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")))
#define MESHTRAIN_LANES_INLINE MESHTRAIN_LANES inline __attribute__((always_inline))

/// Returns the mask of lanes below `count`, which may be below 0 or above kLanes.
MESHTRAIN_LANES_INLINE __mmask16 lanes_below(int64_t count) {
  return count >= kLanes ? __mmask16{0xFFFF} : count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1U << count) - 1);
}

MESHTRAIN_LANES_INLINE __m512 load(const float* from) {
  return _mm512_loadu_ps(from);
}

MESHTRAIN_LANES_INLINE __m512 load(const c10::BFloat16* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

MESHTRAIN_LANES_INLINE __m256i rounded(__m512 values) {
  return (__m256i)_mm512_cvtneps_pbh(values);
}

MESHTRAIN_LANES_INLINE void store(float* to, __m512 values) {
  _mm512_storeu_ps(to, values);
}

MESHTRAIN_LANES_INLINE void store(c10::BFloat16* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(values));
}

/// Loads and stores `lanes` alone, which may end where the memory does; the others are zeros.
MESHTRAIN_LANES_INLINE __m512 load_some(const float* from, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, from);
}

MESHTRAIN_LANES_INLINE __m512 load_some(const c10::BFloat16* from, __mmask16 lanes) {
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

MESHTRAIN_LANES_INLINE void store_some(float* to, __mmask16 lanes, __m512 values) {
  _mm512_mask_storeu_ps(to, lanes, values);
}

MESHTRAIN_LANES_INLINE void store_some(c10::BFloat16* to, __mmask16 lanes, __m512 values) {
  _mm256_mask_storeu_epi16(to, lanes, rounded(values));
}

/// Rounds values to the precision of T.
template <class T>
MESHTRAIN_LANES_INLINE __m512 rounded_to(__m512 values) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return values;
  } else {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(values)), 16));
  }
}

/// Computes 2^x: a polynomial of degree 6 that interpolates 2^x in [-0.5, 0.5], relative error 2.6e-9 before rounding.
MESHTRAIN_LANES_INLINE __m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  __m512 power = _mm512_set1_ps(1.5461444724808513e-4F);
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.3400428177711937e-3F));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(9.61805667843204e-3F));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(5.550327226669895e-2F));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(2.4022650922289554e-1F));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(6.931472067028329e-1F));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1));
  return _mm512_scalef_ps(power, whole);  // 0 for x = -inf, although `rest` is NaN then
}

#else

#define MESHTRAIN_LANES

template <class T>
bool has_lanes() {
  return false;
}

#endif

}  // namespace meshtrain
