#include "runtime/model/rope_host.h"

#if defined(__x86_64__)

namespace meshtrain::rope_host {

template <class T>
MESHTRAIN_LANES void turn(const T* x, const T* cos, const T* sin, const Heads& heads, bool back, T* out) {
  for (int64_t i = 0; i < heads.half; i += kLanes) {
    const __mmask16 lanes = lanes_below(heads.half - i);
    const __m512 c = load_some(cos + i, lanes), angle = load_some(sin + i, lanes);
    const __m512 s = back ? _mm512_sub_ps(_mm512_setzero_ps(), angle) : angle;
    for (int64_t head = 0; head < heads.count; ++head) {
      const T* const from = x + head * heads.stride + i;
      T* const to = out + head * heads.out_stride + i;
      const __m512 first = load_some(from, lanes), second = load_some(from + heads.half, lanes);
      store_some(to, lanes, _mm512_fnmadd_ps(second, s, _mm512_mul_ps(first, c)));
      store_some(to + heads.half, lanes, _mm512_fmadd_ps(first, s, _mm512_mul_ps(second, c)));
    }
  }
}

template void turn(const float*, const float*, const float*, const Heads&, bool, float*);
template void turn(const c10::BFloat16*, const c10::BFloat16*, const c10::BFloat16*, const Heads&, bool,
                   c10::BFloat16*);

}  // namespace meshtrain::rope_host

#endif
