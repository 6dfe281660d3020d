#include "runtime/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "mesh/error.h"

namespace meshtrain {
namespace {

constexpr int kMostOpenings = 100;

}  // namespace

LockOutcome try_lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return LockOutcome::Taken;
    struct flock whole_file {};  // length 0: to its end
    whole_file.l_type = F_WRLCK;
    whole_file.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_OFD_SETLK, &whole_file) == 0) return LockOutcome::Held;
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

LockFile::LockFile(const std::filesystem::path& file) {
  // The holder before may remove the file between open() and the lock.
  for (int tries = kMostOpenings; tries > 0; --tries) {
    descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw InputError("cannot write " + file.string() + ": " + std::strerror(errno));
    outcome_ = try_lock(descriptor_);
    if (outcome_ != LockOutcome::Held || is_named(descriptor_, file)) break;
    ::close(std::exchange(descriptor_, -1));
  }
  if (descriptor_ < 0) throw InputError("cannot lock " + file.string() + ": it is replaced again and again");
  if (outcome_ != LockOutcome::Unsupported) return;
  warning_ = "warning: " + file.string() + " cannot be locked (" + std::strerror(errno) +
             "): nothing keeps a second process from writing in " + file.parent_path().string();
}

LockFile::~LockFile() {
  ::close(descriptor_);
}

}  // namespace meshtrain
