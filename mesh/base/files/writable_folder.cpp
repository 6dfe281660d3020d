#include "mesh/base/files/writable_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "mesh/base/error.h"

namespace meshtrain {

namespace fs = std::filesystem;

fs::path existing_part(const fs::path& path) {
  std::error_code ignored;
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing, ignored) && existing.has_relative_path()) existing = existing.parent_path();
  return existing;
}

void check_writable(const fs::path& folder, const std::string& what) {
  const fs::path existing = existing_part(folder);
  std::error_code ignored;
  if (!fs::is_directory(existing, ignored)) {
    throw InputError(what + " " + folder.string() + " cannot be made: " + existing.string() + " is not a folder");
  }
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    throw InputError(what + " " + folder.string() + " cannot be written: " + existing.string() + ": " +
                     std::strerror(errno));
  }
}

void check_writable_or_new(const fs::path& folder, const std::string& key) {
  check_writable(folder, key + ":");
  std::error_code ignored;
  const fs::path path = fs::absolute(folder), parent = (path.has_filename() ? path : path.parent_path()).parent_path();
  if (fs::is_directory(parent, ignored)) return;
  throw InputError(key, folder.string() + " cannot be made: the folder " + parent.string() + " does not exist");
}

}  // namespace meshtrain
