#pragma once

#include <cstdint>
#include <utility>

namespace meshtrain {

/// The window of attention operators that run on the Meta device on this thread while this object lives. They are the
/// CPU's operators, standing in for a GPU's, and have no argument for a window.
class MetaWindow {
 public:
  explicit MetaWindow(int64_t window) : before_(std::exchange(current_, window)) {}
  ~MetaWindow() { current_ = before_; }
  MetaWindow(const MetaWindow&) = delete;
  MetaWindow& operator=(const MetaWindow&) = delete;

  /// Returns AttentionRule::window of the operator that runs now; 0: none.
  static int64_t current() { return current_; }

 private:
  inline static thread_local int64_t current_ = 0;
  int64_t before_;
};

}  // namespace meshtrain
