#include "tests/support/faults/faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

namespace meshtrain::testing {
namespace {

struct Fault {
  std::string call, part;
  int error = 0;
  long skip = 0, count = LONG_MAX;
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> all;
};

Faults& faults() {
  static auto* const faults = new Faults;  // files are closed after destructors have run
  return *faults;
}

int number_of(const std::string& error) {
  static const std::map<std::string, int> numbers = {{"EACCES", EACCES},   {"EDQUOT", EDQUOT},   {"EINVAL", EINVAL},
                                                     {"EIO", EIO},         {"ENODATA", ENODATA}, {"ENOLCK", ENOLCK},
                                                     {"ENOLINK", ENOLINK}, {"ENOSPC", ENOSPC},   {"ENOSYS", ENOSYS},
                                                     {"ESTALE", ESTALE},   {"EXDEV", EXDEV}};
  const auto found = numbers.find(error);
  if (found == numbers.end()) {
    std::fprintf(stderr, "MESHTRAIN_FAULTS: no error %s\n", error.c_str());
    std::abort();
  }
  return found->second;
}

/// The error that `call` of `path` shall fail with; 0: none.
int error_of(const char* call, const std::string& path) {
  const std::lock_guard lock(faults().mutex);
  for (Fault& fault : faults().all) {
    if (fault.call != call || path.find(fault.part) == std::string::npos) continue;
    if (fault.skip-- > 0 || fault.count-- <= 0) continue;
    return fault.error;
  }
  return 0;
}

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

/// Returns whether the call fails; errno is then set.
bool fails(const char* call, const std::string& path) {
  const int error = error_of(call, path);
  if (error != 0) errno = error;
  return error != 0;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

[[maybe_unused]] const bool from_environment = [] {
  if (const char* const text = std::getenv("MESHTRAIN_FAULTS")) inject_faults(text);
  return true;
}();

}  // namespace

void inject_faults(const std::string& text) {
  std::vector<Fault> all;
  std::istringstream list(text);
  for (std::string entry; std::getline(list, entry, ';');) {
    std::istringstream words(entry);
    std::string error, number;
    Fault fault;
    std::getline(words, fault.call, ':');
    std::getline(words, fault.part, ':');
    std::getline(words, error, ':');
    fault.error = number_of(error);
    if (std::getline(words, number, ':')) fault.skip = std::stol(number);
    if (std::getline(words, number, ':')) fault.count = std::stol(number);
    all.push_back(fault);
  }
  const std::lock_guard lock(faults().mutex);
  faults().all = all;
}

}  // namespace meshtrain::testing

using namespace meshtrain::testing;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static auto* const next = real<int(const char*, int, ...)>("open");
  return fails("open", path) ? -1 : next(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static auto* const next = real<int(const char*, int, ...)>("open64");
  return fails("open", path) ? -1 : next(path, flags, mode);
}

FILE* fopen64(const char* path, const char* mode) {  // that of C++ streams
  static auto* const next = real<FILE*(const char*, const char*)>("fopen64");
  return fails("open", path) ? nullptr : next(path, mode);
}

DIR* opendir(const char* path) {
  static auto* const next = real<DIR*(const char*)>("opendir");
  return fails("opendir", path) ? nullptr : next(path);
}

DIR* fdopendir(int descriptor) {
  static auto* const next = real<DIR*(int)>("fdopendir");
  return fails("opendir", path_of(descriptor)) ? nullptr : next(descriptor);
}

ssize_t read(int descriptor, void* to, size_t bytes) {
  static auto* const next = real<ssize_t(int, void*, size_t)>("read");
  return fails("read", path_of(descriptor)) ? -1 : next(descriptor, to, bytes);
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  static auto* const next = real<ssize_t(int, void*, size_t, off_t)>("pread");
  return fails("pread", path_of(descriptor)) ? -1 : next(descriptor, to, bytes, offset);
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  static auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  return fails("write", path_of(descriptor)) ? -1 : next(descriptor, from, bytes);
}

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static auto* const next = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return fails("pwrite", path_of(descriptor)) ? -1 : next(descriptor, from, bytes, offset);
}

int fsync(int descriptor) {
  static auto* const next = real<int(int)>("fsync");
  return fails("fsync", path_of(descriptor)) ? -1 : next(descriptor);
}

int fdatasync(int descriptor) {
  static auto* const next = real<int(int)>("fdatasync");
  return fails("fdatasync", path_of(descriptor)) ? -1 : next(descriptor);
}

int sync_file_range(int descriptor, off_t offset, off_t bytes, unsigned flags) {
  static auto* const next = real<int(int, off_t, off_t, unsigned)>("sync_file_range");
  return fails("sync_file_range", path_of(descriptor)) ? -1 : next(descriptor, offset, bytes, flags);
}

int ftruncate(int descriptor, off_t length) noexcept {
  static auto* const next = real<int(int, off_t)>("ftruncate");
  return fails("ftruncate", path_of(descriptor)) ? -1 : next(descriptor, length);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const next = real<int(const char*, const char*)>("rename");
  return fails("rename", std::string(from) + "\n" + to) ? -1 : next(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static auto* const next = real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return fails("rename", std::string(from) + "\n" + to) ? -1 : next(from_folder, from, to_folder, to, flags);
}

int close(int descriptor) {  // the descriptor is gone, also where it fails
  static auto* const next = real<int(int)>("close");
  const int error = error_of("close", path_of(descriptor));
  const int closed = next(descriptor);
  if (error == 0) return closed;
  errno = error;
  return -1;
}

int flock(int descriptor, int operation) noexcept {
  static auto* const next = real<int(int, int)>("flock");
  return fails("flock", path_of(descriptor)) ? -1 : next(descriptor, operation);
}

int fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  static auto* const next = real<int(int, int, ...)>("fcntl");
  if (command == F_OFD_SETLK && fails("flock", path_of(descriptor))) return -1;
  return next(descriptor, command, argument);
}

}  // extern "C"
