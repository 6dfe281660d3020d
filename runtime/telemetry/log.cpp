#include "runtime/telemetry/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace meshtrain {
namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e%z %l: %v";

}  // namespace

std::string log_line(const std::string& level, const std::string& line) {
  spdlog::memory_buf_t formatted;
  const spdlog::details::log_msg message("", spdlog::level::from_str(level), line);
  spdlog::pattern_formatter(kPattern).format(message, formatted);
  return fmt::to_string(formatted);
}

void open_log(const std::filesystem::path& file) {
  const auto console = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  const auto kept = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
  console->set_pattern("%v");
  kept->set_pattern(kPattern);
  const auto logger = std::make_shared<spdlog::logger>("", spdlog::sinks_init_list{console, kept});
  logger->flush_on(spdlog::level::info);
  logger->set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(logger);
}

}  // namespace meshtrain
