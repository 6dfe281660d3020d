#include "runtime/watch/phase.h"

#include <mutex>
#include <utility>

namespace meshtrain {
namespace {

std::mutex mutex;
const Phase* innermost = nullptr;
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

Phase::Phase(std::string text) : Phase([text = std::move(text)] { return text; }) {}

Phase::Phase(std::function<std::string()> describe) : describe_(std::move(describe)) {
  {
    const std::lock_guard lock(mutex);
    outer_ = std::exchange(innermost, this);
  }
  show_change();
}

Phase::~Phase() {
  {
    const std::lock_guard lock(mutex);
    innermost = outer_;
  }
  show_change();
}

void Phase::when_changed(std::function<void()> call) {
  show() = std::move(call);
}

std::string Phase::current() {
  const std::lock_guard lock(mutex);
  return innermost != nullptr ? innermost->describe_() : "the set-up";
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
