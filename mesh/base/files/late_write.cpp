#include "mesh/base/files/late_write.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "mesh/base/files/descriptor.h"

namespace meshtrain {
namespace {

constexpr std::chrono::seconds kPatience{1};

std::string append(const std::filesystem::path& file, const std::string& text, bool makes) {
  const Descriptor descriptor(open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (makes ? O_CREAT : 0), 0644));
  if (!descriptor.is_open()) return std::strerror(errno);
  errno = ENOSPC;  // for a write that takes a part
  const bool done = write(descriptor.number(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return done ? "" : std::strerror(errno);
}

}  // namespace

std::string write_late(std::function<std::string()> write) {
  auto done = std::make_shared<std::promise<std::string>>();
  std::future<std::string> result = done->get_future();
  try {
    std::thread([done, write = std::move(write)] { done->set_value(write()); }).detach();
  } catch (const std::system_error& error) {  // no thread is left
    return error.what();
  }
  return result.wait_for(kPatience) == std::future_status::ready ? result.get() : "its disk does not answer";
}

std::string append_late(const std::filesystem::path& file, const std::string& text, bool makes) {
  return write_late([=] { return append(file, text, makes); });
}

}  // namespace meshtrain
