#pragma once

#include <cstdint>
#include <utility>

namespace meshtrain {

/// While it exists, each operator that this thread calls on the Meta device stands for so many calls, one after the
/// other, on tensors of the same shapes.
class RepeatedCalls {
 public:
  explicit RepeatedCalls(int64_t times) : before_(std::exchange(current_, times * current_)) {}
  ~RepeatedCalls() { current_ = before_; }
  RepeatedCalls(const RepeatedCalls&) = delete;
  RepeatedCalls& operator=(const RepeatedCalls&) = delete;

  /// Returns the number of calls that an operator stands for now; 1 without a RepeatedCalls.
  static int64_t current() { return current_; }

 private:
  inline static thread_local int64_t current_ = 1;
  int64_t before_;
};

}  // namespace meshtrain
