#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "mesh/device/meta_device.h"

namespace meshtrain {

/// Largest temporary of an operation that can work in pieces.
inline constexpr int64_t kTemporaryBytes = int64_t{4} << 20;

/// Calls piece(first, count) for consecutive ranges of `rows` rows of tensors like `tensor`. A range has at most
/// kTemporaryBytes, at `row_bytes` per row, or it is one row. Where visits_all_pieces() is false, the first range
/// stands for all of its size.
template <class Piece>
void for_row_chunks(const at::Tensor& tensor, int64_t rows, int64_t row_bytes, Piece piece) {
  const int64_t chunk = std::max<int64_t>(1, kTemporaryBytes / std::max<int64_t>(1, row_bytes));
  const bool visits_all = visits_all_pieces(tensor);
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    if (visits_all || first == 0 || count < chunk) piece(first, count);
  }
}

}  // namespace meshtrain
