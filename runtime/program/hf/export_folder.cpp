#include "runtime/program/hf/export_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "runtime/program/hf/carried_over.h"
#include "runtime/training/model/peft_tensors.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr int kMostLinks = 40;

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

/// Returns true when something is mounted on `folder`: rename() can replace an empty folder, but not such a one.
bool is_mount_point(const fs::path& folder) {
  struct statx status {};
  if (::statx(AT_FDCWD, folder.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status) != 0) return false;
  if ((status.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  struct stat own {
  }, above{};  // for kernels before 5.8
  return ::stat(folder.c_str(), &own) == 0 && ::stat(folder.parent_path().c_str(), &above) == 0 &&
         own.st_dev != above.st_dev;
}

/// Returns true when `folder` has complete weights, and when its files cannot be looked up.
bool is_complete(const fs::path& folder) {
  const auto has = [&](const char* name) {
    std::error_code unknown;
    return fs::status(folder / name, unknown).type() != fs::file_type::not_found;
  };
  return has("model.safetensors") || has("model.safetensors.index.json") || has(kPeftWeights);
}

/// Returns true for names of files that an export writes, and for their partial names: "config.json.partial", as
/// OutputFile writes it.
bool is_of_an_export(std::string name) {
  const size_t partial = name.find(".partial");
  if (partial != std::string::npos) name.resize(partial);
  return name == kLock || name == "config.json" || name == "generation_config.json" || is_tokenizer_file(name) ||
         name == kPeftConfig || name == kPeftWeights ||
         (name.starts_with("model") && name.find(".safetensors") != std::string::npos);
}

/// Returns the nearest folder above `path` that exists.
fs::path existing_above(const fs::path& path) {
  std::error_code ignored;
  fs::path existing = path.parent_path();
  while (!fs::exists(existing, ignored) && existing.has_relative_path()) existing = existing.parent_path();
  return existing;
}

}  // namespace

ExportFolder::ExportFolder(const fs::path& asked) {
  if (asked.empty()) throw InputError("the export folder has no name");
  fs::path path = without_slash(fs::absolute(asked));
  std::error_code error;
  for (int links = 0; fs::is_symlink(path, error); ++links) {
    if (links == kMostLinks)
      throw InputError("cannot export to " + asked.string() + ": its symbolic links form a circle");
    path = without_slash(path.parent_path() / fs::read_symlink(path));
  }
  const bool is_link = path != without_slash(fs::absolute(asked));
  folder_ = fs::weakly_canonical(path, error);
  if (error) folder_ = path.lexically_normal();
  partial_ = folder_;
  partial_ += ".partial";
  text_ = is_link ? asked.string() + ", a link to " + folder_.string() : folder_.string();
}

void ExportFolder::refuse(const std::string& reason) const {
  throw InputError("cannot export to " + text_ + ": " + reason);
}

void ExportFolder::check() const {
  std::error_code error;
  const fs::file_status status = fs::status(folder_, error);
  if (fs::exists(status) && !fs::is_directory(status)) refuse("it is a file");
  if (fs::exists(status) && is_mount_point(folder_)) {
    refuse("it is a mount point, which a rename cannot replace: name a folder in it");
  }
  const bool empty = !fs::exists(status) || fs::is_empty(folder_, error);
  if (error && fs::exists(status)) refuse("it cannot be read: " + error.message());
  if (!empty) refuse("the folder is not empty; name a new one, or empty it");
  const fs::path existing = existing_above(folder_);
  if (!fs::is_directory(existing, error)) refuse(existing.string() + " is not a folder");
  if (::access(existing.c_str(), W_OK | X_OK) != 0) refuse(existing.string() + ": " + std::strerror(errno));
  check_partial();
  try_rename();
}

void ExportFolder::check_partial() const {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(partial_, error);
  if (status.type() == fs::file_type::not_found) return;
  const std::string name = partial_.string();
  if (!fs::status_known(status)) refuse(name + " cannot be read: " + error.message());
  if (!fs::is_directory(status) || is_mount_point(partial_)) {
    refuse(name + ", the temporary name of the export, is not a plain folder: move it away");
  }
  if (is_complete(partial_)) {
    refuse(name + " has the complete weights of an export that could not be renamed: rename it to " + folder_.string() +
           ", or move it away");
  }
  for (fs::directory_iterator at(partial_, error), end; !error && at != end; at.increment(error)) {
    if (!is_of_an_export(at->path().filename())) {
      refuse(at->path().string() + " is in the temporary folder of the export but not part of one: move it away");
    }
  }
  if (error) refuse(name + " cannot be read: " + error.message());
  if (fs::exists(partial_ / kLock, error) && LockFile(partial_ / kLock).is_taken()) {
    refuse("another process is writing it, as " + name);
  }
}

void ExportFolder::try_rename() const {
  const auto fail = [this](const char* what, int error) {
    refuse(std::string("its folder cannot be ") + what + ": " + std::strerror(error) + ": name one elsewhere");
  };
  std::error_code error;
  const fs::path existing = existing_above(folder_), parent = folder_.parent_path();
  // Tries it, because some folders take no new entries whatever their permissions say.
  fs::create_directories(parent, error);
  const int made_parent = error.value();
  std::string trial = folder_.string() + ".partial-XXXXXX";
  const int made = made_parent != 0 ? made_parent : (::mkdtemp(trial.data()) != nullptr ? 0 : errno);
  int renamed = 0;
  if (made == 0 && fs::exists(folder_, error)) {  // exchanges the two, and back
    for (int times = 0; times < 2 && renamed == 0; ++times) {
      if (::renameat2(AT_FDCWD, trial.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) != 0) renamed = errno;
    }
    if (renamed == EINVAL || renamed == ENOSYS) renamed = 0;  // a file system that has no exchange
  } else if (made == 0) {
    if (std::rename(trial.c_str(), folder_.c_str()) != 0) renamed = errno;
    if (renamed == 0) trial = folder_;
  }
  if (made == 0) ::rmdir(trial.c_str());
  for (fs::path above = parent; above != existing && fs::remove(above, error); above = above.parent_path()) {
  }
  if (made != 0) fail("made", made);
  if (renamed != 0) fail("renamed", renamed);
}

void ExportFolder::begin() {
  check();
  existing_ = existing_above(folder_);
  std::error_code error;
  fs::remove_all(partial_, error);  // of an export that was killed
  fs::create_directories(partial_, error);
  if (error) throw std::runtime_error("cannot make " + partial_.string() + ": " + error.message());
  lock_.emplace(partial_ / kLock);
  if (lock_->is_taken()) refuse("another process is writing it, as " + partial_.string());
}

void ExportFolder::complete() {
  std::error_code ignored;
  fs::remove(partial_ / kLock, ignored);
  const auto is_lost_answer = [&](int error) {  // a file server that has renamed it answers a repeated request so
    return (error == ENOENT || error == ESTALE) && fs::status(partial_, ignored).type() == fs::file_type::not_found &&
           is_complete(folder_);
  };
  if (std::rename(partial_.c_str(), folder_.c_str()) != 0 && !is_lost_answer(errno)) {
    throw std::runtime_error("the weights are complete in " + partial_.string() + ", but cannot be renamed to " +
                             folder_.string() + ": " + std::strerror(errno) + ": rename the folder");
  }
  lock_.reset();
  for (fs::path above = folder_.parent_path();; above = above.parent_path()) {  // up to the folders that begin() made
    sync_folder(above);
    if (above == existing_ || !above.has_relative_path()) return;
  }
}

void ExportFolder::discard() noexcept {
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
  lock_.reset();
}

}  // namespace meshtrain
