#include "runtime/optimizer/adamw_host.h"

#if defined(__x86_64__)

namespace meshtrain::adamw_host {

template <class G, class R>
MESHTRAIN_LANES void update(const Update& with, int64_t count, const G* gradients, float* values, float* first_moment,
                            float* second_moment, R* rounded) {
  const __m512 factor = _mm512_set1_ps(with.gradient_factor), decay = _mm512_set1_ps(with.decay);
  const __m512 beta1 = _mm512_set1_ps(with.beta1), beta2 = _mm512_set1_ps(with.beta2);
  const __m512 rest1 = _mm512_set1_ps(with.rest1), rest2 = _mm512_set1_ps(with.rest2);
  const __m512 step_size = _mm512_set1_ps(with.step_size), eps = _mm512_set1_ps(with.eps);
  const __m512 correction = _mm512_set1_ps(with.root_correction);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = lanes_below(count - i);
    const __m512 gradient = _mm512_mul_ps(load_some(gradients + i, lanes), factor);
    const __m512 first = _mm512_fmadd_ps(rest1, gradient, _mm512_mul_ps(beta1, load_some(first_moment + i, lanes)));
    const __m512 second = _mm512_fmadd_ps(_mm512_mul_ps(rest2, gradient), gradient,
                                          _mm512_mul_ps(beta2, load_some(second_moment + i, lanes)));
    const __m512 root = _mm512_fmadd_ps(_mm512_sqrt_ps(second), correction, eps);
    const __m512 decayed = _mm512_mul_ps(load_some(values + i, lanes), decay);
    const __m512 value = _mm512_fnmadd_ps(step_size, _mm512_div_ps(first, root), decayed);
    store_some(first_moment + i, lanes, first);
    store_some(second_moment + i, lanes, second);
    store_some(values + i, lanes, value);
    if (rounded != nullptr) store_some(rounded + i, lanes, value);
  }
}

using c10::BFloat16;
template void update(const Update&, int64_t, const float*, float*, float*, float*, float*);
template void update(const Update&, int64_t, const float*, float*, float*, float*, BFloat16*);
template void update(const Update&, int64_t, const BFloat16*, float*, float*, float*, BFloat16*);

}  // namespace meshtrain::adamw_host

#endif
