// MappedFile for the fuzzed readers: its last byte is the last before memory that nobody may touch, so that reading
// beyond the file ends the test. Linked before the library that has the usual one.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "mesh/error.h"
#include "runtime/data/mapped_file.h"

namespace meshtrain {
namespace {

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  std::ifstream file(path_, std::ios::binary);
  if (!file || std::filesystem::is_directory(path_)) throw InputError("cannot read " + path_.string());
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) return;
  const size_t readable = whole_pages(bytes.size());
  void* memory = ::mmap(nullptr, readable + whole_pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(memory);
  ::mprotect(begin + readable, whole_pages(1), PROT_NONE);
  data_ = begin + (readable - bytes.size());
  size_ = static_cast<int64_t>(bytes.size());
  std::memcpy(const_cast<std::byte*>(data_), bytes.data(), bytes.size());
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  const size_t readable = whole_pages(static_cast<size_t>(size_));
  ::munmap(const_cast<std::byte*>(data_) - (readable - static_cast<size_t>(size_)), readable + whole_pages(1));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::let_go() const {}

}  // namespace meshtrain
