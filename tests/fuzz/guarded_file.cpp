// FileBytes for the fuzzed readers: inaccessible memory follows the last byte, so that a read beyond the file ends the
// test. Linked before the library that has the usual one.

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "mesh/base/files/file_bytes.h"

namespace meshtrain {
namespace {

size_t full_pages(size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Allocates `size` bytes, at least 1.
std::byte* guarded(size_t size) {
  const size_t readable = full_pages(size);
  void* memory = ::mmap(nullptr, readable + full_pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(memory);
  ::mprotect(begin + readable, full_pages(1), PROT_NONE);
  return begin + (readable - size);
}

void unmap(std::byte* bytes, size_t size) {
  const size_t readable = full_pages(size);
  ::munmap(bytes - (readable - size), readable + full_pages(1));
}

}  // namespace

FileBytes::FileBytes(int64_t size) {
  if (size > 0) bytes_ = {guarded(static_cast<size_t>(size)), Free{size}};
}

void FileBytes::Free::operator()(std::byte* bytes) const {
  unmap(bytes, static_cast<size_t>(size));
}

}  // namespace meshtrain
