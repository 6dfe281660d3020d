#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace meshtrain {

/// The outcome of asking for an exclusive lock. Locks are the kernel's: a process that is killed leaves none behind.
enum class LockOutcome {
  Held,         ///< until the descriptor is closed
  Taken,        ///< another process holds it
  Unsupported,  ///< the file system has no locks: nobody holds it, and nobody can
};

/// Tries to lock the file that is open as `descriptor` and returns at once: by flock(), or where the file system has
/// none by a lock of the open file description (fcntl). `descriptor` must be open for writing. When the outcome is
/// Unsupported errno says why.
LockOutcome try_lock(int descriptor);

/// Returns whether `descriptor` is the file of the name `path` now: not one that was removed or renamed since it was
/// opened.
bool is_named(int descriptor, const std::filesystem::path& path);

/// A file that is open, and what became of locking it.
struct OpenedFile {
  int descriptor = -1;  ///< -1: it could not be opened, and errno says why
  LockOutcome outcome = LockOutcome::Unsupported;
};

/// Opens `path` with `flags` and `mode` and tries to lock it, until the locked file is the one of that name: the holder
/// before may remove or rename it between open() and the lock. errno is ESTALE after too many tries; when the outcome
/// is Unsupported it says why.
OpenedFile open_locked(const std::filesystem::path& path, int flags, mode_t mode);

/// A lock file, held as long as this lives. On a file system without locks it holds nothing.
class LockFile {
 public:
  /// Creates `file` where it is absent. Throws InputError when it cannot be created. Between hosts it locks as far as
  /// the file system's locks reach.
  explicit LockFile(const std::filesystem::path& file);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  bool is_taken() const { return outcome_ == LockOutcome::Taken; }
  /// One line for people when the file system has no locks, so that nothing keeps a second process away; else empty.
  const std::string& warning() const { return warning_; }

 private:
  int descriptor_ = -1;
  LockOutcome outcome_ = LockOutcome::Unsupported;
  std::string warning_;
};

}  // namespace meshtrain
