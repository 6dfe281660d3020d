#include "runtime/program/report/line_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mesh/base/error.h"
#include "mesh/base/files/descriptor.h"

namespace meshtrain {
namespace {

constexpr size_t kBlock = size_t{1} << 18;
constexpr size_t kLongestLine = size_t{1} << 20;
constexpr size_t kRemembered = 256;  // bytes

[[noreturn]] void cannot_read(const std::filesystem::path& file, const std::string& reason) {
  throw InputError("cannot read " + file.string() + ": " + reason);
}

/// Reads up to `count` bytes. Returns fewer at the end of the file only; -1 when the disk fails.
ssize_t read_at(int descriptor, char* to, size_t count, int64_t offset) {
  size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(descriptor, to + done, count - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

void LineFollower::forget() {
  offset_ = 0;
  before_.clear();
  device_ = 0;
  inode_ = 0;
  num_too_long_ = 0;
}

bool LineFollower::continues(int descriptor, const struct ::stat& now) const {
  if (now.st_dev != device_ || now.st_ino != inode_ || now.st_size < offset_) return false;
  std::string bytes(before_.size(), '\0');
  const int64_t at = offset_ - static_cast<int64_t>(before_.size());
  return read_at(descriptor, bytes.data(), bytes.size(), at) == static_cast<ssize_t>(bytes.size()) && bytes == before_;
}

void LineFollower::read(const std::function<void()>& begin_again, const std::function<void(std::string_view)>& visit) {
  const Descriptor file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct ::stat now {};
  if (file.number() < 0 && errno != ENOENT) cannot_read(file_, std::strerror(errno));
  if (file.number() >= 0 && ::fstat(file.number(), &now) != 0) cannot_read(file_, std::strerror(errno));
  if (file.number() >= 0 && !S_ISREG(now.st_mode)) cannot_read(file_, "it is not a regular file");
  if (inode_ != 0 && (file.number() < 0 || !continues(file.number(), now))) {
    forget();
    begin_again();
  }
  if (file.number() < 0) return;
  device_ = now.st_dev;
  inode_ = now.st_ino;

  std::string block(kBlock, '\0'), line;  // line: what earlier blocks have of the line that is read
  bool is_too_long = false;
  ssize_t count = 0;
  for (int64_t at = offset_; (count = read_at(file.number(), block.data(), kBlock, at)) > 0; at += count) {
    std::string_view rest(block.data(), static_cast<size_t>(count));
    for (size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      offset_ = at + (rest.data() - block.data()) + static_cast<int64_t>(end) + 1;
      if (is_too_long || line.size() + end > kLongestLine) {
        ++num_too_long_;
        before_.clear();
      } else {
        line.append(rest.substr(0, end));
        visit(line);
        before_ = line.substr(line.size() - std::min(line.size(), kRemembered)) + '\n';
      }
      line.clear();
      is_too_long = false;
    }
    is_too_long = is_too_long || line.size() + rest.size() > kLongestLine;
    if (is_too_long) {
      line.clear();
    } else {
      line.append(rest);
    }
  }
  if (count < 0) cannot_read(file_, std::strerror(errno));
}

}  // namespace meshtrain
