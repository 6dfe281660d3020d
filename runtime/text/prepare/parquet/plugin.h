#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace meshtrain {

/// Receives a text of the row `row` of `num_rows`, from 0 on.
using ParquetVisit = std::function<void(std::string_view text, int64_t row, int64_t num_rows)>;

/// The functions of libmeshtrain_parquet.so, which is linked to Arrow's C++ libraries, for the program that opens it.
struct ParquetPlugin {
  /// Visits the texts of `column`, a name or a path "a.b", row by row; rows without one are left out. A page of the
  /// file is in memory at a time. An empty `visit` only looks whether there are any. Returns what is wrong, empty when
  /// nothing is; throws what `visit` throws, and std::exception for a damaged file.
  std::string (*read)(const std::string& file, const std::string& column, const ParquetVisit& visit) = nullptr;
};

}  // namespace meshtrain
