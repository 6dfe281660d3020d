#include "runtime/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "mesh/error.h"

namespace meshtrain {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw InputError("cannot read " + path.string() + ": " + reason);
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(path_, std::strerror(errno));
  struct stat status {};
  const int stat_error = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  void* mapped = nullptr;
  int map_error = 0;
  if (stat_error == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    mapped = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) map_error = errno;
  }
  ::close(descriptor);
  if (stat_error != 0) fail(path_, std::strerror(stat_error));
  if (S_ISDIR(status.st_mode)) fail(path_, "it is a folder");
  if (!S_ISREG(status.st_mode)) fail(path_, "it is not a regular file");
  if (map_error != 0) fail(path_, std::strerror(map_error));
  data_ = static_cast<const std::byte*>(mapped);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::let_go() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(size_), MADV_DONTNEED);
}

}  // namespace meshtrain
