#include "runtime/telemetry/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace meshtrain {

void open_log(const std::filesystem::path& file) {
  const auto console = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  const auto kept = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
  console->set_pattern("%v");
  kept->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  const auto logger = std::make_shared<spdlog::logger>("", spdlog::sinks_init_list{console, kept});
  logger->flush_on(spdlog::level::info);
  logger->set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(logger);
}

}  // namespace meshtrain
