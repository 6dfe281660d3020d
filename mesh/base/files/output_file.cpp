#include "mesh/base/files/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/file_lock.h"

namespace meshtrain {
namespace {

constexpr size_t kStretch = 8 << 20;  // bytes

std::string reason(const std::filesystem::path& path, int error) {
  return "cannot write " + path.string() + ": " + std::strerror(error);
}

bool is_wrong_path(int error) {
  return error == ENOENT || error == ENOTDIR || error == EISDIR || error == EACCES || error == EPERM ||
         error == EROFS || error == ENAMETOOLONG || error == ELOOP;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, PageCache cache)
    : path_(std::move(path)), partial_(path_), cache_(cache) {
  if (!path_.has_filename() || std::filesystem::is_directory(path_)) throw InputError(reason(path_, EISDIR));
  partial_ += ".partial";
  open_partial();
}

void OutputFile::open_partial() {
  const auto fail_to_open = [this](int error) {
    if (is_wrong_path(error)) throw InputError(reason(path_, error));
    throw std::runtime_error(reason(path_, error));
  };
  const OpenedFile opened = open_locked(partial_, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (opened.descriptor < 0) fail_to_open(errno);
  if (opened.outcome == LockOutcome::Held) {
    descriptor_ = opened.descriptor;
    if (::ftruncate(descriptor_, 0) != 0) fail(errno);
    return;
  }
  struct stat made {};
  ::fstat(opened.descriptor, &made);
  ::close(opened.descriptor);
  if (opened.outcome == LockOutcome::Taken) {
    throw InputError("cannot write " + path_.string() + ": another process is writing it, as " + partial_.string());
  }
  if (made.st_size == 0) ::unlink(partial_.c_str());  // without locks no process writes under this name
  std::string name = partial_.string() + "-XXXXXX";
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail_to_open(errno);
  partial_ = name;
  ::fchmod(descriptor_, made.st_mode & 0777);  // the mode of any new file here; mkostemp() sets its own
}

OutputFile::~OutputFile() {
  discard();
}

void OutputFile::append(const void* data, size_t bytes) {
  write_at(end_, data, bytes);
  end_ += static_cast<int64_t>(bytes);
}

void OutputFile::write_at(int64_t offset, const void* data, size_t bytes) {
  is_synced_ = false;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t most = cache_ == PageCache::Dropped ? std::min(bytes, kStretch) : bytes;
    const ssize_t written = ::pwrite(descriptor_, next, most, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(written < 0 ? errno : ENOSPC);
    if (cache_ == PageCache::Dropped) pass_on({offset, offset + written});
    next += written;
    offset += written;
    bytes -= static_cast<size_t>(written);
  }
}

// The system reports an error of the disk once, here or in finish().
void OutputFile::pass_on(Stretch written) {
  if (written.begin == in_memory_.end) written.begin = in_memory_.begin;
  in_memory_ = written;
  const auto size = [](const Stretch& stretch) { return stretch.end - stretch.begin; };
  if (size(in_memory_) < static_cast<int64_t>(kStretch)) return;
  const auto sync = [&](const Stretch& stretch, unsigned flags) {
    const int failed = ::sync_file_range(descriptor_, stretch.begin, size(stretch), flags);
    if (failed != 0 && !is_unsupported(errno)) fail(errno);
  };
  sync(in_memory_, SYNC_FILE_RANGE_WRITE);
  if (size(on_their_way_) > 0) {
    sync(on_their_way_, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(descriptor_, on_their_way_.begin, size(on_their_way_), POSIX_FADV_DONTNEED);
  }
  on_their_way_ = in_memory_;
  in_memory_ = {in_memory_.end, in_memory_.end};
}

void OutputFile::sync() {
  if (::fsync(descriptor_) != 0 && !is_unsupported(errno)) fail(errno);
  // Some file systems write when a file is closed, and report a failure only then. Closing the original while a
  // duplicate is open keeps the lock.
  const int twin = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (twin < 0 || ::close(twin) != 0) fail(errno);
  is_synced_ = true;
}

void OutputFile::finish() {
  if (!is_synced_) sync();
  // A file server that has renamed the file may return these errors when its first answer was lost and the request is
  // repeated.
  const bool is_renamed = std::rename(partial_.c_str(), path_.c_str()) == 0 ||
                          ((errno == ENOENT || errno == ESTALE) && is_named(descriptor_, path_));
  if (!is_renamed) fail(errno);
  partial_.clear();
  ::close(std::exchange(descriptor_, -1));
  sync_folder(path_.parent_path());
}

void OutputFile::fail(int error) {
  discard();
  throw std::runtime_error(reason(path_, error));
}

void OutputFile::discard() noexcept {
  if (descriptor_ < 0) return;
  if (!partial_.empty()) ::unlink(partial_.c_str());  // while it is locked
  partial_.clear();
  ::close(std::exchange(descriptor_, -1));
}

void write_atomically(const std::filesystem::path& path, const std::string& text) {
  OutputFile file(path);
  file.append(text.data(), text.size());
  file.finish();
}

void expect_file(const std::filesystem::path& path, size_t bytes) {
  std::error_code error;
  const size_t found = std::filesystem::file_size(path, error);
  if (error) throw std::runtime_error(path.string() + " was written and cannot be found: " + error.message());
  if (found == bytes) return;
  throw std::runtime_error(path.string() + " has " + std::to_string(found) + " bytes, " + std::to_string(bytes) +
                           " were written");
}

bool is_unsupported(int error) {
  return error == ENOSYS || error == EINVAL || error == ESPIPE || error == EOPNOTSUPP;
}

void sync_folder(const std::filesystem::path& folder) {
  const char* name = folder.empty() ? "." : folder.c_str();
  const int descriptor = ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 && errno == EACCES && ::access(name, W_OK | X_OK) == 0) {
    ::sync();  // a folder with permission to write but not to read: sync() makes everything durable instead
    return;
  }
  const bool synced = descriptor >= 0 && (::fsync(descriptor) == 0 || is_unsupported(errno));
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!synced) throw std::runtime_error(reason(name, error));
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return;
  if (!folder.has_filename()) return make_folders(folder.parent_path());  // "folder/"
  make_folders(folder.parent_path());
  std::error_code error;
  std::filesystem::create_directory(folder, error);  // no error where another process was faster
  const std::string failure = "cannot make the folder " + folder.string() + ": " + error.message();
  if (error.value() == EEXIST || is_wrong_path(error.value())) throw InputError(failure);  // a file is in the way
  if (error) throw std::runtime_error(failure);
  sync_folder(folder.parent_path());
}

}  // namespace meshtrain
