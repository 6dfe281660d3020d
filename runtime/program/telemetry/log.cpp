#include "runtime/program/telemetry/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string_view>

namespace meshtrain {
namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e%z %l: %v";

/// Formats lines by the pattern above, without the "warning: " that the level says already.
class KeptFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& formatted) override {
    constexpr std::string_view kPrefix = "warning: ";
    const std::string_view line(message.payload.data(), message.payload.size());
    spdlog::details::log_msg kept = message;
    if (message.level == spdlog::level::warn && line.starts_with(kPrefix)) kept.payload = line.substr(kPrefix.size());
    pattern_.format(kept, formatted);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<KeptFormatter>(); }

 private:
  spdlog::pattern_formatter pattern_{kPattern};
};

}  // namespace

std::string log_line(const std::string& level, const std::string& line) {
  spdlog::memory_buf_t formatted;
  const spdlog::details::log_msg message("", spdlog::level::from_str(level), line);
  KeptFormatter().format(message, formatted);
  return fmt::to_string(formatted);
}

void open_log(const std::filesystem::path& file) {
  const auto console = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  const auto kept = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
  console->set_pattern("%v");
  kept->set_formatter(std::make_unique<KeptFormatter>());
  const auto logger = std::make_shared<spdlog::logger>("", spdlog::sinks_init_list{console, kept});
  logger->flush_on(spdlog::level::info);
  logger->set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(logger);
}

}  // namespace meshtrain
