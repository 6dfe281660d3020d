#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "mesh/device/meta_device.h"
#include "mesh/device/repeated_calls.h"

namespace meshtrain {

/// Largest temporary of an operation that can work in pieces.
inline constexpr int64_t kTemporaryBytes = int64_t{4} << 20;

/// Calls piece(first, count) for consecutive ranges of `rows` rows of tensors like `tensor`. A range has at most
/// kTemporaryBytes, at `row_bytes` per row, or it is one row. On the Meta device the first range stands for all of its
/// size (RepeatedCalls).
template <class Piece>
void for_row_chunks(const at::Tensor& tensor, int64_t rows, int64_t row_bytes, Piece piece) {
  const int64_t chunk = std::max<int64_t>(1, kTemporaryBytes / std::max<int64_t>(1, row_bytes));
  int64_t first = 0;
  if (tensor.is_meta() && rows > chunk) {
    const RepeatedCalls repeated(rows / chunk);
    piece(first, chunk);
    first = rows - rows % chunk;
  }
  for (; first < rows; first += chunk) piece(first, std::min(chunk, rows - first));
}

/// Calls piece(first, count) as for_row_chunks() does on the host, and once for all rows on a GPU, whose launches cost
/// more than memory.
template <class Piece>
void for_host_row_chunks(const at::Tensor& tensor, int64_t rows, int64_t row_bytes, Piece piece) {
  if (!is_host(tensor.device())) return piece(0, rows);
  for_row_chunks(tensor, rows, row_bytes, piece);
}

}  // namespace meshtrain
