#pragma once

#include <algorithm>
#include <cstdint>

namespace meshtrain {

/// Largest temporary of an operation that can work in pieces.
inline constexpr int64_t kTemporaryBytes = int64_t{4} << 20;

/// Calls piece(first, count) for consecutive ranges of `rows` rows. A range has at most kTemporaryBytes, at `row_bytes`
/// per row, or it is one row.
template <class Piece>
void for_row_chunks(int64_t rows, int64_t row_bytes, Piece piece) {
  const int64_t chunk = std::max<int64_t>(1, kTemporaryBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t first = 0; first < rows; first += chunk) piece(first, std::min(chunk, rows - first));
}

}  // namespace meshtrain
