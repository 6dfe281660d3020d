// Only this file is compiled with spdlog, and it hides spdlog's names (mesh/CMakeLists.txt), because a program that
// links libmeshtrain.so may have another version of spdlog.
#pragma GCC visibility push(default)
#include "mesh/base/log.h"

#include "mesh/base/error.h"
#include "mesh/base/files/descriptor.h"
#include "mesh/base/files/late_write.h"
#pragma GCC visibility pop

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace meshtrain {
namespace {

constexpr const char* kFilePattern = "%Y-%m-%d %H:%M:%S.%e%z %l: %v";

struct LevelWord {
  const char* word;
  LogLevel level;
};
constexpr std::array kLevelWords = {LevelWord{"info", LogLevel::Info}, LevelWord{"warning", LogLevel::Warning},
                                    LevelWord{"error", LogLevel::Error}, LevelWord{"off", LogLevel::Off}};

constexpr spdlog::level::level_enum kFailure = spdlog::level::critical;  // printed at every level

spdlog::level::level_enum least_printed(LogLevel level) {
  switch (level) {
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warning:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Off:
      break;
  }
  return kFailure;
}

/// A sink that formats and writes lines without a lock, so that a thread whose disk or reader has stopped does not hold
/// up other threads.
class Sink : public spdlog::sinks::sink {
 public:
  void flush() final {}
  void set_pattern(const std::string&) final {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) final {}
};

class ConsoleSink final : public Sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    const char* const prefix = message.level == spdlog::level::info   ? ""
                               : message.level == spdlog::level::warn ? "meshtrain: warning: "
                               : message.level == spdlog::level::err  ? "meshtrain: error: "
                                                                      : "meshtrain: ";
    std::FILE* const stream = message.level == spdlog::level::info && prints_to_stdout ? stdout : stderr;
    const std::string line = prefix + std::string(message.payload.data(), message.payload.size()) + "\n";
    std::fwrite(line.data(), 1, line.size(), stream);
    std::fflush(stream);
  }

  std::atomic<bool> prints_to_stdout = false;
};

class FileSink final : public Sink {
 public:
  /// `opened`: `file`, opened for lines of level Info; nullptr when another rank writes these lines.
  void set(std::filesystem::path file, std::shared_ptr<const Descriptor> opened) {
    const std::lock_guard lock(mutex_);
    file_ = std::move(file);
    opened_ = std::move(opened);
  }

  void log(const spdlog::details::log_msg& message) override {
    const auto [file, opened] = [this] {
      const std::lock_guard lock(mutex_);
      return std::pair(file_, opened_);
    }();
    const bool is_info = message.level == spdlog::level::info;
    if (is_info ? opened == nullptr : file.empty()) return;
    spdlog::details::log_msg kept = message;
    if (kept.level == kFailure) kept.level = spdlog::level::err;
    spdlog::memory_buf_t formatted;
    spdlog::pattern_formatter(kFilePattern).format(kept, formatted);
    // A problem with the file is not logged: the terminal has the lines.
    if (is_info) {
      [[maybe_unused]] const ssize_t written = ::write(opened->number(), formatted.data(), formatted.size());
    } else {
      append_late(file, {formatted.data(), formatted.size()}, /*makes=*/false);
    }
  }

 private:
  std::mutex mutex_;
  std::filesystem::path file_;
  std::shared_ptr<const Descriptor> opened_;
};

/// The logger of this process and its sinks. It outlives threads that still log while the process ends.
struct Log {
  static Log& get() {
    static auto* const log = new Log;
    return *log;
  }

  Log() {
    logger.set_error_handler([](const std::string&) {});
  }

  void log(spdlog::level::level_enum of_line, const std::string& line) {
    logger.log(of_line, spdlog::string_view_t(line.data(), line.size()));
  }

  const std::shared_ptr<ConsoleSink> console = std::make_shared<ConsoleSink>();
  const std::shared_ptr<FileSink> file = std::make_shared<FileSink>();
  std::atomic<LogLevel> level = LogLevel::Info;
  spdlog::logger logger{"meshtrain", spdlog::sinks_init_list{console, file}};
};

}  // namespace

LogLevel log_level_of(const std::string& word) {
  std::string words;
  for (const auto& [known, level] : kLevelWords) {
    if (word == known) return level;
    words += (words.empty() ? "" : level == LogLevel::Off ? " or " : ", ") + std::string(known);
  }
  throw InputError("\"" + word + "\" is not a log level: give " + words);
}

void set_log_level(LogLevel level) {
  Log::get().level = level;
  Log::get().console->set_level(least_printed(level));
}

LogLevel log_level() {
  return Log::get().level;
}

void log_info(const std::string& line) {
  Log::get().log(spdlog::level::info, line);
}

void log_warning(const std::string& line) {
  Log::get().log(spdlog::level::warn, line);
}

void log_error(const std::string& line) {
  Log::get().log(spdlog::level::err, line);
}

void log_failure(const std::string& line) {
  Log::get().log(kFailure, line);
}

void log_to(const std::filesystem::path& file) {
  Log& log = Log::get();
  log.console->prints_to_stdout = true;
  auto opened = std::make_shared<Descriptor>(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!opened->is_open()) throw std::runtime_error("cannot write " + file.string() + ": " + std::strerror(errno));
  log.file->set(file, std::move(opened));
}

void log_warnings_to(const std::filesystem::path& file) {
  Log::get().file->set(file, nullptr);
}

void close_log() {
  Log& log = Log::get();
  log.console->prints_to_stdout = false;
  log.file->set({}, nullptr);
}

}  // namespace meshtrain
