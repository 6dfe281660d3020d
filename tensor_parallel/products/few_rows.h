#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::few_rows {

/// The most rows of x for which a product x W^T takes as long as reading W once, as when tokens are generated.
inline constexpr int64_t kMost = 4;

/// Rows of elements that lie side by side; `stride` is the number of elements from a row to the next.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

/// Writes out [rows, columns] = x W^T for x [rows, terms], rows <= kMost, and w [columns, terms], with the instructions
/// of Set (host_lanes.h): T is float or c10::BFloat16. Sums are fp32, rounded once. Reads W once.
template <class Set, class T>
MESHTRAIN_LANES void multiply(Rows<const T> x, int64_t rows, Rows<const T> w, int64_t columns, int64_t terms,
                              Rows<T> out);

}  // namespace meshtrain::few_rows
