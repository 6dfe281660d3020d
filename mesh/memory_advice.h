#pragma once

#include <functional>
#include <string>

namespace meshtrain {

/// The advice of message_of() (error.h) on memory that was refused, "a rank needs less with ...", for as long as it
/// lives; there is one at a time. Without one, and when `advice` throws or returns an empty text, the advice is
/// general. Any thread may call `advice`, with little memory left.
class MemoryAdvice {
 public:
  explicit MemoryAdvice(std::function<std::string()> advice);
  ~MemoryAdvice();
  MemoryAdvice(const MemoryAdvice&) = delete;
  MemoryAdvice& operator=(const MemoryAdvice&) = delete;
};

}  // namespace meshtrain
