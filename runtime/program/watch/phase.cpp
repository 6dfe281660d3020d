#include "runtime/program/watch/phase.h"

#include <array>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace meshtrain {
namespace {

constexpr std::array kNames = {"set_up", "resume", "step", "reading", "saving", "export", "other"};

std::mutex mutex;
const Phase* innermost = nullptr;
std::optional<PhaseState>& left_by_exception() {
  static auto* const state = new std::optional<PhaseState>;  // outlives threads that read it
  return *state;
}
std::string& name() {
  static auto* const name = new std::string;  // outlives threads that read it
  return *name;
}
std::function<void()>& show() {
  static auto* const show = new std::function<void()>;
  return *show;
}
void show_change() {
  if (show()) show()();
}

}  // namespace

const char* name(PhaseKind kind) {
  return kNames.at(static_cast<size_t>(kind));
}

PhaseKind phase_kind_named(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<PhaseKind>(i);
  }
  return PhaseKind::Other;
}

Phase::Phase(std::string text) : Phase(PhaseState{std::move(text)}) {}

Phase::Phase(PhaseState state) : Phase([state = std::move(state)] { return state; }) {}

Phase::Phase(std::function<PhaseState()> describe)
    : describe_(std::move(describe)), num_exceptions_(std::uncaught_exceptions()) {
  {
    const std::lock_guard lock(mutex);
    outer_ = std::exchange(innermost, this);
    left_by_exception().reset();
  }
  show_change();
}

Phase::~Phase() {
  {
    const std::lock_guard lock(mutex);
    innermost = outer_;
    if (std::uncaught_exceptions() > num_exceptions_ && !left_by_exception()) left_by_exception() = describe_();
  }
  show_change();
}

void Phase::when_changed(std::function<void()> call) {
  show() = std::move(call);
}

PhaseState Phase::current() {
  const std::lock_guard lock(mutex);
  return innermost != nullptr ? innermost->describe_() : PhaseState{"the set-up", PhaseKind::SetUp};
}

PhaseState Phase::failed() {
  {
    const std::lock_guard lock(mutex);
    if (left_by_exception()) return *left_by_exception();
  }
  return current();
}

void set_rank_name(const std::string& text) {
  {
    const std::lock_guard lock(mutex);
    name() = text;
  }
  show_change();
}

std::string rank_name() {
  const std::lock_guard lock(mutex);
  return name();
}

}  // namespace meshtrain
