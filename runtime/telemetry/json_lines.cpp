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

/// Length of the leading lines that are whole and belong to steps up to `last_step`.
int64_t length_through(const std::filesystem::path& file, int64_t last_step) {
  std::ifstream in(file);
  int64_t length = 0;
  for (std::string line; std::getline(in, line) && !in.eof(); length += static_cast<int64_t>(line.size()) + 1) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || entry.value("step", last_step + 1) > last_step) break;
  }
  return length;
}

}  // namespace

JsonLines::JsonLines(std::filesystem::path file, int64_t last_step)
    : file_(std::move(file)), descriptor_(open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail(file_);
  if (ftruncate(descriptor_, length_through(file_, last_step)) != 0) fail(file_);
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
