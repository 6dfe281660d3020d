#include "runtime/training/trainer/operators/squared_norm_host.h"

#include "mesh/device/host_lanes.h"

#if defined(__x86_64__)

namespace meshtrain::squared_norm_host {

template <class Set, class T>
MESHTRAIN_LANES double sum_of_squares(const T* elements, int64_t count) {
  WideLanes sums = wide_zeros(), next_sums = sums;  // independent sums hide latency
  for (int64_t i = 0; i < count; i += 2 * kLanes) {
    const int64_t next = i + kLanes;
    sums = add_squares(sums, load_some(elements + i, lanes_below(count - i)));
    if (next < count) next_sums = add_squares(next_sums, load_some(elements + next, lanes_below(count - next)));
  }
  return sum_of(sums, next_sums);
}

template double sum_of_squares<ThisSet>(const float*, int64_t);
template double sum_of_squares<ThisSet>(const c10::BFloat16*, int64_t);

}  // namespace meshtrain::squared_norm_host

#endif
