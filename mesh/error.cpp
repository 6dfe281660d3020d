#include "mesh/error.h"

#include <c10/util/Exception.h>

#include <new>

namespace meshtrain {
namespace {

std::string out_of_memory(const std::string& refused) {
  return "out of memory: " + refused +
         "; a rank needs less with more ranks along cp or tp, a smaller train.micro_batch or a shorter "
         "train.sequence_length";
}

}  // namespace

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
