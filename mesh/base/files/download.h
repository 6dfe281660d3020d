#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace meshtrain {

/// The limit for a pointer's size, which the specification of Git LFS sets; pointers are smaller.
inline constexpr int64_t kMostPointerBytes = 1024;

/// Describes a small file that holds a reference in place of its content: "it is a pointer of Git LFS, not the file's
/// content: run git lfs pull in its folder". Returns an empty text for any other file.
std::string describe_pointer(std::string_view bytes);

/// Returns "it is a link to X, which does not exist: ..." for a dangling link; an empty text for anything else.
std::string describe_dangling(const std::filesystem::path& path);

/// Returns true when an entry of this name exists, even a dangling link, which opening reports.
bool has_entry(const std::filesystem::path& path);

/// Returns true for the name of a file that a program is still downloading: *.incomplete, *.part, ...
bool is_unfinished_download(const std::filesystem::path& file);

/// Returns a file that a download from the Hugging Face hub left because it has not ended; an empty path when `folder`
/// has none.
std::filesystem::path unfinished_hub_download(const std::filesystem::path& folder);

}  // namespace meshtrain
