#include "expert_parallel/row_loops_host.h"

#include "mesh/device/host_lanes.h"

#if defined(__x86_64__)

namespace meshtrain::row_loops_host {

using c10::BFloat16;

template <class Set, class T>
MESHTRAIN_LANES void add_slots(const T* y, const int64_t* rows, const bool* left_out, int64_t tokens, int64_t slots,
                               int64_t width, T* out) {
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < width; i += kLanes) {
      const Mask some = lanes_below(width - i);
      Lanes sum = broadcast(0);
      for (int64_t pair = token * slots; pair < (token + 1) * slots; ++pair) {
        const bool adds = left_out == nullptr || !left_out[pair];
        if (adds) sum = sum + load_some(y + rows[pair] * width + i, some);
      }
      store_some(out + token * width + i, some, sum);
    }
  }
}

template <class Set, class T>
MESHTRAIN_LANES void scale(T* y, const float* factors, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row) {
    const Lanes factor = broadcast(factors[row]);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Mask some = lanes_below(width - i);
      store_some(y + row * width + i, some, load_some(y + row * width + i, some) * factor);
    }
  }
}

template void add_slots<ThisSet>(const float*, const int64_t*, const bool*, int64_t, int64_t, int64_t, float*);
template void add_slots<ThisSet>(const BFloat16*, const int64_t*, const bool*, int64_t, int64_t, int64_t, BFloat16*);
template void scale<ThisSet>(float*, const float*, int64_t, int64_t);
template void scale<ThisSet>(BFloat16*, const float*, int64_t, int64_t);

}  // namespace meshtrain::row_loops_host

#endif
