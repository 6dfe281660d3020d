#include "mesh/base/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

constexpr int kMostOpenings = 100;

}  // namespace

LockOutcome try_lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return LockOutcome::Taken;
    struct flock lock {};  // length 0: to its end
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return LockOutcome::Held;
    return errno == EAGAIN || errno == EACCES ? LockOutcome::Taken : LockOutcome::Unsupported;
  }
  return LockOutcome::Held;
}

bool is_named(int descriptor, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

OpenedFile open_locked(const std::filesystem::path& path, int flags, mode_t mode) {
  for (int tries = kMostOpenings; tries > 0; --tries) {
    const int descriptor = ::open(path.c_str(), flags, mode);
    if (descriptor < 0) return {};
    const LockOutcome outcome = try_lock(descriptor);
    if (outcome != LockOutcome::Held || is_named(descriptor, path)) return {descriptor, outcome};
    ::close(descriptor);
  }
  errno = ESTALE;
  return {};
}

LockFile::LockFile(const std::filesystem::path& file) {
  const OpenedFile opened = open_locked(file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (opened.descriptor < 0) throw InputError("cannot write " + file.string() + ": " + std::strerror(errno));
  descriptor_ = opened.descriptor;
  outcome_ = opened.outcome;
  if (outcome_ != LockOutcome::Unsupported) return;
  warning_ = file.string() + " cannot be locked (" + std::strerror(errno) +
             "): a second process could write at the same time in " + file.parent_path().string();
}

LockFile::~LockFile() {
  ::close(descriptor_);
}

}  // namespace meshtrain
