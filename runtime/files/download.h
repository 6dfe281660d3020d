#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace meshtrain {

/// Pointers are smaller than this, as the specification of Git LFS demands.
inline constexpr int64_t kMostPointerBytes = 1024;

/// Returns what a small file is that holds a reference in place of its content: "a pointer of Git LFS, not its content:
/// run git lfs pull in its folder". Returns an empty text for any other.
std::string describe_pointer(std::string_view bytes);

/// Returns "it is a link to X, which does not exist: ..." for a link that leads to nothing; an empty text for anything
/// else.
std::string describe_dangling(const std::filesystem::path& path);

/// Returns true where there is an entry of this name, also a link that leads to nothing: opening that says so.
bool has_entry(const std::filesystem::path& path);

/// Returns true for a name that downloading programs give to a file until it is complete: *.incomplete, *.part, ...
bool is_unfinished_download(const std::filesystem::path& file);

/// Returns a file that shows that a download from the Hugging Face hub into `folder` has not ended; an empty path when
/// there is none.
std::filesystem::path unfinished_hub_download(const std::filesystem::path& folder);

}  // namespace meshtrain
