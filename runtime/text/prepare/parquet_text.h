#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace meshtrain {

/// Returns true when the name of `file` says that it is a Parquet file: *.parquet, in capitals too.
bool is_parquet(const std::filesystem::path& file);

/// Checks that `file` has a column of texts of this name. Throws InputError, naming the file, when it does not or is
/// damaged, and when meshtrain was built without Arrow.
void check_parquet(const std::filesystem::path& file, const std::string& column);

/// Calls `visit` with the texts of a column, row by row, and with the part of the file's rows, 0 to 1, up to this one.
/// Rows without a text are left out. Throws as check_parquet() does, and what `visit` throws.
void for_each_parquet_text(const std::filesystem::path& file, const std::string& column,
                           const std::function<void(std::string_view text, int64_t row, double part)>& visit);

}  // namespace meshtrain
