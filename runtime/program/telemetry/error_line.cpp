#include "runtime/program/telemetry/error_line.h"

#include <cstdio>
#include <mutex>
#include <utility>

#include "runtime/program/telemetry/late_write.h"
#include "runtime/program/telemetry/log.h"

namespace meshtrain {
namespace {

std::mutex file_mutex;
std::string& file_of_lines() {
  static auto* const file = new std::string;  // outlives threads that print
  return *file;
}

void print(const char* before, const char* level, const std::string& line) {
  std::fprintf(stderr, "meshtrain: %s%s\n", before, line.c_str());
  const std::string file = [] {
    const std::lock_guard lock(file_mutex);
    return file_of_lines();
  }();
  if (file.empty()) return;
  // A file that is not on this host, or gone, has no such line: stderr has it.
  append_late(file, log_line(level, line), /*makes=*/false);
}

}  // namespace

void keep_error_lines_in(std::filesystem::path file) {
  const std::lock_guard lock(file_mutex);
  file_of_lines() = std::move(file);
}

void print_error_line(const std::string& line) {
  print("", "error", line);
}

void print_warning_line(const std::string& text) {
  print("warning: ", "warning", text);
}

}  // namespace meshtrain
