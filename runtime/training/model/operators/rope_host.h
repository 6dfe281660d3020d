#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::rope_host {

/// The elements of a token's heads that are rotated, one row for each head.
struct Heads {
  int64_t count;               ///< of heads
  int64_t half;                ///< elements of a row's first half, and of its second
  int64_t stride, out_stride;  ///< elements from a head to the next one
};

/// Rotates the rows of one token by the angles of `cos` and `sin` [half], or back by them, with the instructions of
/// Set (host_lanes.h): T is float or c10::BFloat16, values are rounded once. `out` may be `x`.
template <class Set, class T>
MESHTRAIN_LANES void rotate_heads(const T* x, const T* cos, const T* sin, const Heads& heads, bool back, T* out);

}  // namespace meshtrain::rope_host
