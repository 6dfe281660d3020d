#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::squared_norm_host {

/// Returns the sum of squares of `count` elements, float or c10::BFloat16, in fp64, with the instructions of
/// Set (host_lanes.h).
template <class Set, class T>
MESHTRAIN_LANES double sum_of_squares(const T* elements, int64_t count);

}  // namespace meshtrain::squared_norm_host
