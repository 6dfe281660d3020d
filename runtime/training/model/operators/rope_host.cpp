#include "runtime/training/model/operators/rope_host.h"

#include "mesh/device/host_lanes.h"

#if defined(__x86_64__)

namespace meshtrain::rope_host {

template <class Set, class T>
MESHTRAIN_LANES void rotate_heads(const T* x, const T* cos, const T* sin, const Heads& heads, bool back, T* out) {
  for (int64_t i = 0; i < heads.half; i += kLanes) {
    const Mask lanes = lanes_below(heads.half - i);
    const Lanes c = load_some(cos + i, lanes), angle = load_some(sin + i, lanes);
    const Lanes s = back ? broadcast(0) - angle : angle;
    for (int64_t head = 0; head < heads.count; ++head) {
      const T* const from = x + head * heads.stride + i;
      T* const to = out + head * heads.out_stride + i;
      const Lanes first = load_some(from, lanes), second = load_some(from + heads.half, lanes);
      store_some(to, lanes, fnmadd(second, s, first * c));
      store_some(to + heads.half, lanes, fmadd(first, s, second * c));
    }
  }
}

template void rotate_heads<ThisSet>(const float*, const float*, const float*, const Heads&, bool, float*);
template void rotate_heads<ThisSet>(const c10::BFloat16*, const c10::BFloat16*, const c10::BFloat16*, const Heads&,
                                    bool, c10::BFloat16*);

}  // namespace meshtrain::rope_host

#endif
