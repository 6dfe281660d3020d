#include "runtime/program/telemetry/late_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

namespace meshtrain {
namespace {

constexpr std::chrono::seconds kPatience{1};

std::string append(const std::filesystem::path& file, const std::string& text, bool makes) {
  const int descriptor = open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (makes ? O_CREAT : 0), 0644);
  if (descriptor < 0) return std::strerror(errno);
  errno = ENOSPC;  // for a write that takes a part
  const bool done = write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const std::string problem = done ? "" : std::strerror(errno);
  close(descriptor);
  return problem;
}

}  // namespace

std::string append_late(const std::filesystem::path& file, const std::string& text, bool makes) {
  auto done = std::make_shared<std::promise<std::string>>();
  std::future<std::string> result = done->get_future();
  try {
    std::thread([file, text, makes, done] { done->set_value(append(file, text, makes)); }).detach();
  } catch (const std::system_error& error) {  // no thread is left
    return error.what();
  }
  return result.wait_for(kPatience) == std::future_status::ready ? result.get() : "its disk does not answer";
}

}  // namespace meshtrain
