#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::row_loops_host {

/// Writes, for each of `tokens` tokens, the sum in fp32 of its `slots` rows of y [R, width] in their order, rounded
/// once, with the instructions of Set (host_lanes.h); T is float or c10::BFloat16. `left_out`: pairs that add nothing;
/// null: none.
template <class Set, class T>
MESHTRAIN_LANES void add_slots(const T* y, const int64_t* rows, const bool* left_out, int64_t tokens, int64_t slots,
                               int64_t width, T* out);

/// Multiplies each row of y [rows, width] by its factor in fp32 and rounds once.
template <class Set, class T>
MESHTRAIN_LANES void scale(T* y, const float* factors, int64_t rows, int64_t width);

}  // namespace meshtrain::row_loops_host
