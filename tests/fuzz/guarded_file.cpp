// FileMapping for the fuzzed readers: its last byte is the last before memory that nobody may touch, so that reading
// beyond the file ends the test. Linked before the library that has the usual one.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <string>

#include "mesh/error.h"
#include "runtime/data/file_mapping.h"

namespace meshtrain {
namespace {

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

FileMapping::FileMapping(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) throw InputError("cannot read " + path.string());
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) return;
  const size_t readable = whole_pages(bytes.size());
  void* memory = ::mmap(nullptr, readable + whole_pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(memory);
  ::mprotect(begin + readable, whole_pages(1), PROT_NONE);
  std::byte* copy = begin + (readable - bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  bytes_ = {copy, Unmap{static_cast<int64_t>(bytes.size())}};
}

void FileMapping::Unmap::operator()(const std::byte* bytes) const {
  const size_t readable = whole_pages(static_cast<size_t>(size));
  ::munmap(const_cast<std::byte*>(bytes) - (readable - static_cast<size_t>(size)), readable + whole_pages(1));
}

void FileMapping::let_go() const {}

}  // namespace meshtrain
