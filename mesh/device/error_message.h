#pragma once

#include <exception>
#include <functional>
#include <string>

namespace meshtrain {

/// Returns an error's text for people: LibTorch's without its backtrace; for memory that was refused, how much, and
/// which settings need less.
std::string message_of(const std::exception& error);

/// The advice that message_of() gives when memory is refused, "a rank needs less with ...", while this object lives.
/// Only one may exist at a time, because its end removes the advice. Without one, or when `advice` throws or returns an
/// empty text, message_of() gives general advice. Any thread may call `advice`, with little memory left.
class MemoryAdvice {
 public:
  explicit MemoryAdvice(std::function<std::string()> advice);
  ~MemoryAdvice();
  MemoryAdvice(const MemoryAdvice&) = delete;
  MemoryAdvice& operator=(const MemoryAdvice&) = delete;
};

}  // namespace meshtrain
