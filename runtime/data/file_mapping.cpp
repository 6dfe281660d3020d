#include "runtime/data/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "mesh/error.h"

namespace meshtrain {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw InputError("cannot read " + path.string() + ": " + reason);
}

}  // namespace

FileMapping::FileMapping(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(path, std::strerror(errno));
  struct stat status {};
  const int stat_error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  void* mapped = nullptr;
  int map_error = 0;
  if (stat_error == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    mapped = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) map_error = errno;
  }
  ::close(descriptor);
  if (stat_error != 0) fail(path, std::strerror(stat_error));
  if (S_ISDIR(status.st_mode)) fail(path, "it is a folder");
  if (!S_ISREG(status.st_mode)) fail(path, "it is not a regular file");
  if (map_error != 0) fail(path, std::strerror(map_error));
  bytes_ = {static_cast<const std::byte*>(mapped), Unmap{status.st_size}};
}

void FileMapping::Unmap::operator()(const std::byte* bytes) const {
  ::munmap(const_cast<std::byte*>(bytes), static_cast<size_t>(size));
}

void FileMapping::let_go() const {
  if (bytes_) ::madvise(const_cast<std::byte*>(data()), static_cast<size_t>(size()), MADV_DONTNEED);
}

}  // namespace meshtrain
