#include "mesh/device/error_message.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <new>
#include <utility>

namespace meshtrain {
namespace {

std::mutex advice_mutex;
std::function<std::string()>& memory_advice() {
  static auto* const advice = new std::function<std::string()>;  // outlives threads that fail
  return *advice;
}

std::string out_of_memory(const std::string& refused) {
  const auto advise = [] {
    const std::lock_guard lock(advice_mutex);
    return memory_advice();
  }();
  std::string advice;
  try {
    if (advise) advice = advise();
  } catch (const std::exception&) {  // it needs memory too
  }
  return "out of memory: " + refused + "; " +
         (!advice.empty()
              ? advice
              : "a rank needs less with more ranks along cp or tp, a smaller train.micro_batch or a shorter "
                "train.sequence_length");
}

}  // namespace

MemoryAdvice::MemoryAdvice(std::function<std::string()> advice) {
  const std::lock_guard lock(advice_mutex);
  memory_advice() = std::move(advice);
}

MemoryAdvice::~MemoryAdvice() {
  const std::lock_guard lock(advice_mutex);
  memory_advice() = {};
}

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return out_of_memory("the host gave no more");
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    const std::string asked = "Tried to allocate ";
    const size_t found = text.find(asked), end = text.find(". ", found + asked.size());
    if (found == std::string::npos) return out_of_memory(text);
    return out_of_memory("the GPU refused " + text.substr(found + asked.size(), end - found - asked.size()) + " more");
  }
  // LibTorch's allocator of the host throws an error of no type of its own.
  const std::string refused = "can't allocate memory: you tried to allocate ";
  const size_t found = text.find(refused);
  if (found == std::string::npos) return text;
  const size_t number = found + refused.size();
  return out_of_memory("the host refused " + text.substr(number, text.find(' ', number) - number) + " bytes more");
}

}  // namespace meshtrain
