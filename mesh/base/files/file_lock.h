#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// The outcome of a request for an exclusive lock. The kernel owns the locks: a process that is killed leaves none
/// behind.
enum class LockOutcome {
  Held,         ///< until the descriptor is closed
  Taken,        ///< another process holds it
  Unsupported,  ///< the file system has no locks, so no process can hold one
};

/// Tries to lock the file that is open as `descriptor` and returns at once: by flock(), or where the file system has
/// none by a lock of the open file description (fcntl). `descriptor` must be open for writing. When the outcome is
/// Unsupported errno says why.
LockOutcome try_lock(int descriptor);

/// Returns true when `path` still names the file that is open as `descriptor`, false when that file was removed or
/// renamed since.
bool is_named(int descriptor, const std::filesystem::path& path);

/// An open file and the outcome of locking it.
struct OpenedFile {
  int descriptor = -1;  ///< -1: it could not be opened, and errno says why
  LockOutcome outcome = LockOutcome::Unsupported;
};

/// Opens `path` with `flags` and `mode` and tries to lock it; repeats that until `path` names the locked file, because
/// the previous holder may remove or rename the file between open() and the lock. errno is ESTALE after too many tries;
/// when the outcome is Unsupported, errno says why.
OpenedFile open_locked(const std::filesystem::path& path, int flags, mode_t mode);

/// A lock file, locked until this object is destroyed. On a file system without locks it holds nothing, and warning()
/// says so.
class LockFile {
 public:
  /// Creates `file` if it does not exist, and tries to lock it. Throws InputError when it cannot be created. The lock
  /// keeps out processes of other hosts only as far as the file system's locks do.
  explicit LockFile(const std::filesystem::path& file);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  bool is_taken() const { return outcome_ == LockOutcome::Taken; }
  /// Returns one line for people when the file system has no locks, so that a second process could write here too; else
  /// an empty string.
  const std::string& warning() const { return warning_; }

 private:
  int descriptor_ = -1;
  LockOutcome outcome_ = LockOutcome::Unsupported;
  std::string warning_;
};

}  // namespace meshtrain
