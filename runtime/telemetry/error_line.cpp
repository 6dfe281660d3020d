#include "runtime/telemetry/error_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/telemetry/log.h"

namespace meshtrain {
namespace {

constexpr std::chrono::seconds kPatience{1};

std::mutex file_mutex;
std::string& file_of_lines() {
  static auto* const file = new std::string;  // outlives threads that print
  return *file;
}

void append(const std::string& file, const std::string& line) {
  const int descriptor = open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) return;  // not on this host, or gone: stderr has the line
  [[maybe_unused]] const ssize_t written = write(descriptor, line.data(), line.size());
  close(descriptor);
}

}  // namespace

void keep_error_lines_in(std::filesystem::path file) {
  const std::lock_guard lock(file_mutex);
  file_of_lines() = std::move(file);
}

void print_error_line(const std::string& line) {
  std::fprintf(stderr, "meshtrain: %s\n", line.c_str());
  const std::string file = [] {
    const std::lock_guard lock(file_mutex);
    return file_of_lines();
  }();
  if (file.empty()) return;
  const std::string kept = log_line(line.starts_with("warning: ") ? "warning" : "error", line);
  auto done = std::make_shared<std::promise<void>>();
  const std::future<void> is_done = done->get_future();
  try {
    std::thread([file, kept, done] {
      append(file, kept);
      done->set_value();
    }).detach();
  } catch (const std::system_error&) {
    return;  // no thread is left
  }
  is_done.wait_for(kPatience);
}

}  // namespace meshtrain
