#include "tests/gpu/kernel_counter.h"

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <mutex>

namespace meshtrain::testing {
namespace {

std::mutex mutex;
std::map<std::string, int64_t> counted;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const std::string name = function.name();
  const bool counts = name.find("_attention") != std::string::npos || name == "aten::pin_memory";
  if (counts && name.starts_with("aten::")) {
    const std::lock_guard lock(mutex);
    ++counted[name.substr(6)];
  }
  return nullptr;
}

}  // namespace

KernelCounter::KernelCounter() {
  const std::lock_guard lock(mutex);
  counted.clear();
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
}

KernelCounter::~KernelCounter() {
  at::removeCallback(handle_);
}

int64_t KernelCounter::count(const std::string& name) const {
  const std::lock_guard lock(mutex);
  const auto found = counted.find(name);
  return found == counted.end() ? 0 : found->second;
}

int64_t KernelCounter::cudnn() const {
  return count("_scaled_dot_product_cudnn_attention") + count("_scaled_dot_product_cudnn_attention_backward");
}

int64_t KernelCounter::all() const {
  const std::lock_guard lock(mutex);
  int64_t sum = 0;
  for (const auto& [name, calls] : counted) sum += name == "pin_memory" ? 0 : calls;
  return sum;
}

}  // namespace meshtrain::testing
