#pragma once

#include <exception>
#include <functional>
#include <string>

namespace meshtrain {

/// Returns an error's text for people: LibTorch's without its backtrace; for memory that was refused, how much, and
/// which settings need less.
std::string message_of(const std::exception& error);

/// The advice of message_of() on memory that was refused, "a rank needs less with ...", for as long as it lives; there
/// is one at a time. Without one, and when `advice` throws or returns an empty text, the advice is general. Any thread
/// may call `advice`, with little memory left.
class MemoryAdvice {
 public:
  explicit MemoryAdvice(std::function<std::string()> advice);
  ~MemoryAdvice();
  MemoryAdvice(const MemoryAdvice&) = delete;
  MemoryAdvice& operator=(const MemoryAdvice&) = delete;
};

}  // namespace meshtrain
