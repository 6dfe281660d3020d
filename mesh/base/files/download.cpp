#include "mesh/base/files/download.h"

#include <algorithm>
#include <array>
#include <system_error>

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 6> kUnfinished = {".incomplete", ".part",     ".partial",
                                                    ".crdownload", ".download", ".aria2"};

}  // namespace

std::string describe_pointer(std::string_view bytes) {
  if (bytes.size() >= static_cast<size_t>(kMostPointerBytes)) return "";
  if (bytes.starts_with("version https://git-lfs.github.com/spec/")) {
    return "it is a pointer of Git LFS, not the file's content: run git lfs pull in its folder";
  }
  if (bytes.starts_with("/annex/objects/")) {
    return "it is a pointer of git-annex, not the file's content: run git annex get on it";
  }
  return "";
}

std::string describe_dangling(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error) || fs::exists(fs::status(path, error))) return "";
  const bool loops = error == std::errc::too_many_symbolic_link_levels;
  const std::string target = fs::read_symlink(path, error).string();
  const bool is_cached = target.find("blobs/") != std::string::npos;  // of the cache of the Hugging Face hub
  return "it is a link to " + target + (loops ? ", which leads back to it" : ", which does not exist") + ": " +
         (is_cached ? "download the folder again, or copy it with the files that its links lead to (cp -rL)"
                    : "repair it, or remove it");
}

bool has_entry(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_unfinished_download(const fs::path& file) {
  const fs::path ending = file.extension();
  return std::ranges::any_of(kUnfinished, [&](const char* known) { return ending == known; });
}

fs::path unfinished_hub_download(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder / ".cache/huggingface/download", error), end; entry != end;) {
    if (is_unfinished_download(entry->path())) return entry->path();
    if (entry.increment(error); error) break;
  }
  return {};
}

}  // namespace meshtrain
