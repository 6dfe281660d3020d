#include "runtime/watch/stall_limits.h"

#include <mutex>
#include <utility>

namespace meshtrain {
namespace {

std::mutex limits_mutex;
std::optional<StallLimits>& limits() {
  static auto* const limits = new std::optional<StallLimits>;  // outlives threads that read it
  return *limits;
}

}  // namespace

StallGuard::StallGuard(StallLimits now) {
  const std::lock_guard lock(limits_mutex);
  limits() = std::move(now);
}

StallGuard::~StallGuard() {
  const std::lock_guard lock(limits_mutex);
  limits().reset();
}

std::optional<StallLimits> StallGuard::current() {
  const std::lock_guard lock(limits_mutex);
  return limits();
}

}  // namespace meshtrain
