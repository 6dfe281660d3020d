#include "runtime/training/optimizer/operators/adamw_host.h"

#include "mesh/device/host_lanes.h"

#if defined(__x86_64__)

namespace meshtrain::adamw_host {

template <class Set, class G, class R>
MESHTRAIN_LANES void update(const Update& with, int64_t count, const G* gradients, float* values, float* first_moment,
                            float* second_moment, R* rounded) {
  const Lanes factor = broadcast(with.gradient_factor), decay = broadcast(with.decay);
  const Lanes beta1 = broadcast(with.beta1), beta2 = broadcast(with.beta2);
  const Lanes rest1 = broadcast(with.rest1), rest2 = broadcast(with.rest2);
  const Lanes step_size = broadcast(with.step_size), eps = broadcast(with.eps);
  const Lanes correction = broadcast(with.root_correction);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Mask lanes = lanes_below(count - i);
    const Lanes gradient = load_some(gradients + i, lanes) * factor;
    const Lanes first = fmadd(rest1, gradient, beta1 * load_some(first_moment + i, lanes));
    const Lanes second = fmadd(rest2 * gradient, gradient, beta2 * load_some(second_moment + i, lanes));
    const Lanes root = fmadd(square_root_of(second), correction, eps);
    const Lanes decayed = load_some(values + i, lanes) * decay;
    const Lanes value = fnmadd(step_size, first / root, decayed);
    store_some(first_moment + i, lanes, first);
    store_some(second_moment + i, lanes, second);
    store_some(values + i, lanes, value);
    if (rounded != nullptr) store_some(rounded + i, lanes, value);
  }
}

using c10::BFloat16;
template void update<ThisSet>(const Update&, int64_t, const float*, float*, float*, float*, float*);
template void update<ThisSet>(const Update&, int64_t, const float*, float*, float*, float*, BFloat16*);
template void update<ThisSet>(const Update&, int64_t, const BFloat16*, float*, float*, float*, BFloat16*);

}  // namespace meshtrain::adamw_host

#endif
