#include "runtime/program/telemetry/json_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "mesh/base/files/output_file.h"

namespace meshtrain {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file) {
  throw std::runtime_error("cannot write " + file.string() + ": " + std::strerror(errno));
}

/// Returns the step of a line; std::nullopt when the line is incomplete.
std::optional<int64_t> step_of(const std::string& line) {
  const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer()) return std::nullopt;
  return entry["step"].get<int64_t>();
}

/// Calls `visit` with each line of `file`, and true when the line ends with a line break.
void for_each_line(const std::filesystem::path& file, const std::function<void(const std::string&, bool)>& visit) {
  errno = EIO;  // for streams that set no errno
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file.string() + ": " + std::strerror(errno));
  for (std::string line; std::getline(in, line);) visit(line, !in.eof());
  if (in.bad()) throw std::runtime_error("cannot read " + file.string() + " to its end: " + std::strerror(errno));
}

/// The part of a file that is kept: its leading lines that are complete and belong to steps up to `last_step`.
struct KeptLines {
  KeptLines(const std::filesystem::path& file, int64_t last_step,
            const std::function<void(const std::string&)>& on_cut) {
    int64_t next = 1;  // step
    for_each_line(file, [&](const std::string& line, bool ends) {
      const std::optional<int64_t> step = step_of(line);
      if (num_cut == 0 && ends && step && *step <= last_step) {
        length += static_cast<int64_t>(line.size()) + 1;
        miss(next, *step - 1);
        next = *step + 1;
      } else {
        ++num_cut;
        if (on_cut) on_cut(line);
      }
    });
    miss(next, last_step);
  }
  void miss(int64_t first, int64_t last) {
    if (first > last) return;
    missing += std::string(missing.empty() ? "" : ", ") + (first == last ? "step " : "steps ") + std::to_string(first);
    if (first < last) missing += " to " + std::to_string(last);
  }

  int64_t length = 0;
  int64_t num_cut = 0;  // lines after it
  std::string missing;
};

}  // namespace

int64_t last_step_in(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::status(file, error).type() == std::filesystem::file_type::not_found) return 0;
  int64_t last = 0;
  for_each_line(file, [&](const std::string& line, bool) { last = std::max(last, step_of(line).value_or(0)); });
  return last;
}

JsonLines::JsonLines(std::filesystem::path file, int64_t last_step,
                     const std::function<void(const std::string&)>& on_cut)
    : file_(std::move(file)), descriptor_(open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!descriptor_.is_open()) fail(file_);
  const KeptLines kept(file_, last_step, on_cut);
  if (ftruncate(descriptor_.number(), kept.length) != 0) fail(file_);
  num_cut_ = kept.num_cut;
  missing_ = kept.missing;
}

void JsonLines::finish() {
  if (close(descriptor_.release()) != 0 && errno != EINTR) fail(file_);
}

void JsonLines::sync() {
  if (::fdatasync(descriptor_.number()) != 0 && !is_unsupported(errno)) fail(file_);
  if (!is_named_) sync_folder(file_.parent_path());
  is_named_ = true;
}

void JsonLines::append(const std::string& object) {
  const std::string line = object + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(descriptor_.number(), line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(file_);
    written += static_cast<size_t>(count);
  }
}

}  // namespace meshtrain
