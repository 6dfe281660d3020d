#include "runtime/program/watch/stall_limits.h"

#include <mutex>
#include <utility>

namespace meshtrain {
namespace {

std::mutex limits_mutex;  // held while the limits are asked for, so that nobody asks after their end
std::function<StallLimits()>& limits() {
  static auto* const limits = new std::function<StallLimits()>;  // outlives threads that read it
  return *limits;
}

}  // namespace

StallGuard::StallGuard(std::function<StallLimits()> now) {
  const std::lock_guard lock(limits_mutex);
  limits() = std::move(now);
}

StallGuard::~StallGuard() {
  const std::lock_guard lock(limits_mutex);
  limits() = nullptr;
}

std::optional<StallLimits> StallGuard::current() {
  const std::lock_guard lock(limits_mutex);
  return limits() ? std::optional(limits()()) : std::nullopt;
}

}  // namespace meshtrain
