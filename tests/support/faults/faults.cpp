#include "tests/support/faults/faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace meshtrain::testing {
namespace {

struct Fault {
  std::string call, pattern;
  int error = 0;
  std::chrono::milliseconds delay{0};
  bool is_made = false;  // "+": the call is made although it reports the error
  long skip = 0, count = LONG_MAX;
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> all;
  int log = -1;
};

constexpr int kKill = -1;  // in the place of an error number

Faults& faults() {
  static auto* const faults = new Faults;  // never destroyed: files are closed after destructors have run
  return *faults;
}

int number_of(const std::string& error) {
  static const std::map<std::string, int> numbers = {
      {"EACCES", EACCES},   {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL},   {"EIO", EIO},       {"ENOENT", ENOENT},
      {"ENODATA", ENODATA}, {"ENOLCK", ENOLCK}, {"ENOLINK", ENOLINK}, {"ENOSPC", ENOSPC}, {"ENOSYS", ENOSYS},
      {"ESTALE", ESTALE},   {"EXDEV", EXDEV},   {"KILL", kKill}};
  const auto found = numbers.find(error);
  if (found == numbers.end()) {
    std::fprintf(stderr, "MESHTRAIN_FAULTS: no error %s\n", error.c_str());
    std::abort();
  }
  return found->second;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Returns true when the log contains calls for `path`: devices, pipes and the system's own files differ between runs.
bool is_logged(const std::string& path) {
  return path.starts_with("/") && !path.starts_with("/proc") && !path.starts_with("/sys") && !path.starts_with("/dev");
}

void log_call(const char* call, std::string path) {
  if (faults().log < 0 || !is_logged(path)) return;
  for (char& c : path) {
    if (c == '\n') c = ' ';
  }
  const std::string line = std::string(call) + " " + path + "\n";
  static auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  [[maybe_unused]] const ssize_t written = next(faults().log, line.data(), line.size());
}

/// Returns the fault for this `call` of `path`; an error of 0 means none.
Fault fault_of(const char* call, const std::string& path) {
  const std::lock_guard lock(faults().mutex);
  if (std::strcmp(call, "stat") != 0) log_call(call, path);
  for (Fault& fault : faults().all) {
    if (fault.call != call || ::fnmatch(fault.pattern.c_str(), path.c_str(), 0) != 0) continue;
    if (fault.skip-- > 0 || fault.count-- <= 0) continue;
    return fault;
  }
  return {};
}

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

/// Returns the result of `make`, the real call, or `failed` with errno when a fault applies.
template <class Result, class Make>
Result call(const char* name, const std::string& path, Result failed, const Make& make) {
  const Fault fault = fault_of(name, path);
  std::this_thread::sleep_for(fault.delay);
  if (fault.error == 0) return make();
  if (fault.is_made) make();
  if (fault.error == kKill) ::kill(::getpid(), SIGKILL);
  errno = fault.error;
  return failed;
}

[[maybe_unused]] const bool from_environment = [] {
  if (const char* const text = std::getenv("MESHTRAIN_FAULTS")) inject_faults(text);
  if (const char* const file = std::getenv("MESHTRAIN_FAULTS_LOG")) log_calls(file);
  return true;
}();

}  // namespace

void inject_faults(const std::string& text) {
  std::vector<Fault> all;
  std::istringstream list(text);
  for (std::string entry; std::getline(list, entry, ';');) {
    std::istringstream words(entry);
    std::string part, error, number;
    Fault fault;
    std::getline(words, fault.call, ':');
    std::getline(words, part, ':');
    fault.pattern = "*" + part;
    if (part.ends_with("$")) {
      fault.pattern.pop_back();
    } else {
      fault.pattern += "*";
    }
    std::getline(words, error, ':');
    fault.is_made = error.starts_with("+");
    const std::string delay = "delay=";
    if (error.starts_with(delay)) {
      fault.delay = std::chrono::milliseconds(std::stol(error.substr(delay.size())));
    } else {
      fault.error = number_of(error.substr(fault.is_made ? 1 : 0));
    }
    if (std::getline(words, number, ':')) fault.skip = std::stol(number);
    if (std::getline(words, number, ':')) fault.count = std::stol(number);
    all.push_back(fault);
  }
  const std::lock_guard lock(faults().mutex);
  faults().all = all;
}

void log_calls(const std::string& file) {
  static auto* const next = real<int(const char*, int, ...)>("open");
  const int opened = file.empty() ? -1 : next(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  int last = -1;
  {
    const std::lock_guard lock(faults().mutex);
    last = std::exchange(faults().log, opened);
  }
  if (last >= 0) ::close(last);
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
  return call("open", path, -1, [&] { return next(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  static auto* const next = real<int(const char*, int, ...)>("open64");
  return call("open", path, -1, [&] { return next(path, flags, mode); });
}

FILE* fopen64(const char* path, const char* mode) {  // C++ streams call this
  static auto* const next = real<FILE*(const char*, const char*)>("fopen64");
  return call("open", path, static_cast<FILE*>(nullptr), [&] { return next(path, mode); });
}

DIR* opendir(const char* path) {
  static auto* const next = real<DIR*(const char*)>("opendir");
  return call("opendir", path, static_cast<DIR*>(nullptr), [&] { return next(path); });
}

DIR* fdopendir(int descriptor) {
  static auto* const next = real<DIR*(int)>("fdopendir");
  return call("opendir", path_of(descriptor), static_cast<DIR*>(nullptr), [&] { return next(descriptor); });
}

// Calls that query a file. The log has none of them, because they change nothing.
int stat(const char* path, struct stat* status) noexcept {
  static auto* const next = real<int(const char*, struct stat*)>("stat");
  return call("stat", path, -1, [&] { return next(path, status); });
}

int lstat(const char* path, struct stat* status) noexcept {
  static auto* const next = real<int(const char*, struct stat*)>("lstat");
  return call("stat", path, -1, [&] { return next(path, status); });
}

// The names of stat() and lstat() before glibc 2.33, which LibTorch's own copy of std::filesystem calls.
int __xstat(int version, const char* path, struct stat* status) noexcept {
  static auto* const next = real<int(int, const char*, struct stat*)>("__xstat");
  return call("stat", path, -1, [&] { return next(version, path, status); });
}

int __lxstat(int version, const char* path, struct stat* status) noexcept {
  static auto* const next = real<int(int, const char*, struct stat*)>("__lxstat");
  return call("stat", path, -1, [&] { return next(version, path, status); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = real<int(const char*, mode_t)>("mkdir");
  return call("mkdir", path, -1, [&] { return next(path, mode); });
}

ssize_t read(int descriptor, void* to, size_t bytes) {
  static auto* const next = real<ssize_t(int, void*, size_t)>("read");
  return call("read", path_of(descriptor), ssize_t{-1}, [&] { return next(descriptor, to, bytes); });
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  static auto* const next = real<ssize_t(int, void*, size_t, off_t)>("pread");
  return call("pread", path_of(descriptor), ssize_t{-1}, [&] { return next(descriptor, to, bytes, offset); });
}

ssize_t write(int descriptor, const void* from, size_t bytes) {
  static auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  return call("write", path_of(descriptor), ssize_t{-1}, [&] { return next(descriptor, from, bytes); });
}

ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static auto* const next = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return call("pwrite", path_of(descriptor), ssize_t{-1}, [&] { return next(descriptor, from, bytes, offset); });
}

int fsync(int descriptor) {
  static auto* const next = real<int(int)>("fsync");
  return call("fsync", path_of(descriptor), -1, [&] { return next(descriptor); });
}

int fdatasync(int descriptor) {
  static auto* const next = real<int(int)>("fdatasync");
  return call("fdatasync", path_of(descriptor), -1, [&] { return next(descriptor); });
}

int sync_file_range(int descriptor, off_t offset, off_t bytes, unsigned flags) {
  static auto* const next = real<int(int, off_t, off_t, unsigned)>("sync_file_range");
  return call("sync_file_range", path_of(descriptor), -1, [&] { return next(descriptor, offset, bytes, flags); });
}

int ftruncate(int descriptor, off_t length) noexcept {
  static auto* const next = real<int(int, off_t)>("ftruncate");
  return call("ftruncate", path_of(descriptor), -1, [&] { return next(descriptor, length); });
}

int rename(const char* from, const char* to) noexcept {
  static auto* const next = real<int(const char*, const char*)>("rename");
  return call("rename", std::string(from) + "\n" + to, -1, [&] { return next(from, to); });
}

int unlink(const char* path) noexcept {
  static auto* const next = real<int(const char*)>("unlink");
  return call("unlink", path, -1, [&] { return next(path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const next = real<int(int, const char*, int)>("unlinkat");
  return call("unlink", path_of(folder) + "/" + path, -1, [&] { return next(folder, path, flags); });
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static auto* const next = real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return call("rename", std::string(from) + "\n" + to, -1,
              [&] { return next(from_folder, from, to_folder, to, flags); });
}

int close(int descriptor) {  // the descriptor is closed even when close() fails
  static auto* const next = real<int(int)>("close");
  const Fault fault = fault_of("close", path_of(descriptor));
  std::this_thread::sleep_for(fault.delay);
  const int closed = next(descriptor);
  if (fault.error == 0) return closed;
  if (fault.error == kKill) ::kill(::getpid(), SIGKILL);
  errno = fault.error;
  return -1;
}

int flock(int descriptor, int operation) noexcept {
  static auto* const next = real<int(int, int)>("flock");
  return call("flock", path_of(descriptor), -1, [&] { return next(descriptor, operation); });
}

int fcntl(int descriptor, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  static auto* const next = real<int(int, int, ...)>("fcntl");
  if (command != F_OFD_SETLK) return next(descriptor, command, argument);
  return call("flock", path_of(descriptor), -1, [&] { return next(descriptor, command, argument); });
}

}  // extern "C"
