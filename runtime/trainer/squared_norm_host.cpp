#include "runtime/trainer/squared_norm_host.h"

#include <array>
#include <numeric>

#if defined(__x86_64__)

namespace meshtrain::squared_norm_host {
namespace {

/// Adds the squares of eight floats, which fp64 holds exactly.
MESHTRAIN_LANES_INLINE __m512d add_squares(__m512d sum, __m256 values) {
  const __m512d wide = _mm512_cvtps_pd(values);
  return _mm512_fmadd_pd(wide, wide, sum);
}

}  // namespace

template <class T>
MESHTRAIN_LANES double sum_of_squares(const T* elements, int64_t count) {
  __m512d low = _mm512_setzero_pd(), high = low, next_low = low, next_high = low;  // independent sums hide latency
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    const __m512 values = load_some(elements + i, lanes_below(count - i));
    const int64_t next = i + kLanes;
    low = add_squares(low, _mm512_castps512_ps256(values));
    high = add_squares(high, _mm512_extractf32x8_ps(values, 1));
    if (next >= count) break;
    const __m512 others = load_some(elements + next, lanes_below(count - next));
    next_low = add_squares(next_low, _mm512_castps512_ps256(others));
    next_high = add_squares(next_high, _mm512_extractf32x8_ps(others, 1));
  }
  std::array<double, kLanes / 2> sums;
  _mm512_storeu_pd(sums.data(), _mm512_add_pd(_mm512_add_pd(low, next_low), _mm512_add_pd(high, next_high)));
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const c10::BFloat16*, int64_t);

}  // namespace meshtrain::squared_norm_host

#endif
