#include "runtime/telemetry/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

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

MetricsFile::MetricsFile(std::filesystem::path file, int64_t last_step, bool tells_skipped)
    : file_(std::move(file)),
      descriptor_(open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      tells_skipped_(tells_skipped) {
  if (descriptor_ < 0) fail(file_);
  if (ftruncate(descriptor_, length_through(file_, last_step)) != 0) fail(file_);
}

MetricsFile::~MetricsFile() {
  close(descriptor_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  nlohmann::ordered_json entry = {{"step", metrics.step},
                                  {"loss", metrics.loss},
                                  {"grad_norm", metrics.grad_norm},
                                  {"learning_rate", metrics.learning_rate},
                                  {"tokens", metrics.tokens},
                                  {"step_seconds", metrics.step_seconds},
                                  {"tokens_per_second", metrics.tokens_per_second}};
  if (metrics.loss_scale) entry["loss_scale"] = *metrics.loss_scale;
  if (tells_skipped_) entry["skipped"] = metrics.skipped;
  if (!metrics.non_finite.empty()) entry["non_finite"] = metrics.non_finite;
  const std::string line = entry.dump() + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(descriptor_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(file_);
    written += static_cast<size_t>(count);
  }
}

}  // namespace meshtrain
