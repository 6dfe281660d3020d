#include "runtime/telemetry/json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace meshtrain {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file) {
  throw std::runtime_error("cannot write " + file.string() + ": " + std::strerror(errno));
}

bool belongs(const std::string& line, int64_t last_step) {
  const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return entry.is_object() && entry.value("step", last_step + 1) <= last_step;
}

/// What of a file is kept: its leading lines that are whole and belong to steps up to `last_step`.
struct Kept {
  Kept(const std::filesystem::path& file, int64_t last_step) {
    errno = EIO;  // of streams that give no reason
    std::ifstream in(file);
    if (!in) throw std::runtime_error("cannot read " + file.string() + ": " + std::strerror(errno));
    for (std::string line; std::getline(in, line);) {
      if (num_cut == 0 && !in.eof() && belongs(line, last_step)) {
        length += static_cast<int64_t>(line.size()) + 1;
      } else {
        ++num_cut;
      }
    }
    if (in.bad()) throw std::runtime_error("cannot read " + file.string() + " to its end: " + std::strerror(errno));
  }
  int64_t length = 0;
  int64_t num_cut = 0;  // lines behind it
};

}  // namespace

JsonLines::JsonLines(std::filesystem::path file, int64_t last_step)
    : file_(std::move(file)), descriptor_(open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail(file_);
  try {
    const Kept kept(file_, last_step);
    if (ftruncate(descriptor_, kept.length) != 0) fail(file_);
    num_cut_ = kept.num_cut;
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

JsonLines::~JsonLines() {
  close(descriptor_);
}

void JsonLines::append(const std::string& object) {
  const std::string line = object + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(descriptor_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(file_);
    written += static_cast<size_t>(count);
  }
}

}  // namespace meshtrain
