#include "mesh/base/files/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/download.h"

namespace meshtrain {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // bytes

// Processes may often open 1,024 files; a checkpoint of as many ranks, or a mixture of as many sources, has more.
constexpr int kMostKept = 256;
std::atomic<int> num_kept = 0;

}  // namespace

struct FileReader::OpenFile {
  int descriptor;
  bool is_kept;
};

void FileReader::Close::operator()(const OpenFile* file) const {
  ::close(file->descriptor);
  if (file->is_kept) --num_kept;
  delete file;
}

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  const bool keeps = ++num_kept <= kMostKept;
  if (!keeps) --num_kept;
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int open_error = errno;
  if (descriptor < 0 && keeps) --num_kept;
  if (descriptor < 0) {
    const std::string dangling = describe_dangling(path_);
    fail(dangling.empty() ? std::strerror(open_error) : dangling);
  }
  kept_.reset(new OpenFile{descriptor, keeps});
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail("it is a folder");
  if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
  size_ = status.st_size;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  changed_ = status.st_mtim;
  refuse_stand_in();
  if (!keeps) kept_.reset();
}

void FileReader::refuse_stand_in() const {
  const std::string pointer = size_ < kMostPointerBytes ? describe_pointer(read(0, size_).text()) : "";
  if (!pointer.empty()) fail(pointer);
  std::error_code ignored;
  const std::filesystem::path state = path_.string() + ".aria2";
  if (std::filesystem::exists(state, ignored)) {
    fail(state.filename().string() +
         " next to it shows that its download is not complete: run aria2 again, or remove " + state.string() +
         " if the file is complete");
  }
}

FileReader::Handle FileReader::open() const {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(std::strerror(errno));
  Handle file(new OpenFile{descriptor, false});
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(std::strerror(errno));
  const bool is_same_file = status.st_dev == device_ && status.st_ino == inode_;
  const bool is_unchanged = status.st_size == size_ && status.st_mtim.tv_sec == changed_.tv_sec &&
                            status.st_mtim.tv_nsec == changed_.tv_nsec;  // for file systems whose inode numbers change
  if (!is_same_file && !is_unchanged) fail("another file has replaced it since it was opened");
  return file;
}

void FileReader::read(int64_t offset, void* to, int64_t count) const {
  if (offset < 0 || count < 0 || offset > size_ - count) {
    throw std::out_of_range(path_.string() + ": bytes [" + std::to_string(offset) + ", +" + std::to_string(count) +
                            ") of " + std::to_string(size_));
  }
  Handle reopened = kept_ || count == 0 ? nullptr : open();
  const OpenFile* const file = reopened ? reopened.get() : kept_.get();
  char* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t done = ::pread(file->descriptor, next, static_cast<size_t>(count), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(std::string(std::strerror(errno)) + " at byte " + std::to_string(offset));
    if (done == 0) {
      struct stat status {};
      ::fstat(file->descriptor, &status);
      fail("it has " + std::to_string(status.st_size) + " bytes, and had " + std::to_string(size_) +
           " when it was opened: it was cut short since");
    }
    next += done;
    offset += done;
    count -= done;
  }
}

FileBytes FileReader::read(int64_t offset, int64_t count) const {
  FileBytes bytes(count);
  read(offset, bytes.data(), count);
  return bytes;
}

void FileReader::for_each_block(int64_t offset, int64_t count,
                                const std::function<void(std::string_view block)>& visit) const {
  FileBytes block(std::min(count, kBlock));
  for (const int64_t end = offset + count; offset < end;) {
    const int64_t here = std::min(end - offset, kBlock);
    read(offset, block.data(), here);
    visit(block.text().substr(0, static_cast<size_t>(here)));
    offset += here;
  }
}

void FileReader::fail(const std::string& reason) const {
  throw InputError("cannot read " + path_.string() + ": " + reason);
}

FileBytes read_all(const std::filesystem::path& path) {
  const FileReader file(path);
  return file.read(0, file.size());
}

}  // namespace meshtrain
