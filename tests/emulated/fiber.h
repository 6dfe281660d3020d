#pragma once

#include <cstddef>
#include <functional>

namespace meshtrain::emulated {

/// A separate stack on which `body` runs, in turns with the caller of resume(). Reports each change of stacks
/// to the address sanitizer.
class Fiber {
 public:
  /// The first resume() starts `body`; a resume() after its end starts it again.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body up to its next suspend(), or to its end. Do not call on a fiber.
  void resume();
  /// Returns from a fiber to resume().
  static void suspend();
  /// Discards the state of the body: it starts again. Nothing on its stack is destroyed.
  void restart();

 private:
  static void enter();

  std::function<void()> body_;
  char* stack_;
  bool started_ = false;
  void *own_[5], *callers_[5];  // where to go on, for __builtin_longjmp
  // State of the address sanitizer for each of the two stacks.
  void *own_frames_ = nullptr, *callers_frames_ = nullptr;
  const void* callers_stack_ = nullptr;
  size_t callers_size_ = 0;
};

}  // namespace meshtrain::emulated
