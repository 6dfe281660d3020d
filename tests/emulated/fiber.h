#pragma once

#include <csetjmp>
#include <cstddef>
#include <functional>

namespace meshtrain::emulated {

/// A stack of its own on which `body` runs, in turns with whoever calls resume(). Told to the address sanitizer.
class Fiber {
 public:
  /// Runs the first time resume() is called, and again when it is called after its end.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the body up to its next suspend(), or to its end. Not on a fiber.
  void resume();
  /// On a fiber: back to resume().
  static void suspend();
  /// Forgets where the body is: it begins anew. Nothing on its stack is destroyed.
  void restart();

 private:
  static void enter();

  std::function<void()> body_;
  char* stack_;
  bool started_ = false;
  std::jmp_buf own_, callers_;
  // Of the address sanitizer, for each of the two stacks.
  void *own_frames_ = nullptr, *callers_frames_ = nullptr;
  const void* callers_stack_ = nullptr;
  size_t callers_size_ = 0;
};

}  // namespace meshtrain::emulated
