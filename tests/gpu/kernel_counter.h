#pragma once

#include <cstdint>
#include <string>

namespace meshtrain::testing {

/// A counter for calls of LibTorch's attention operators, and of pin_memory, in this process, on all threads, while
/// this object lives. One at a time.
class KernelCounter {
 public:
  KernelCounter();
  ~KernelCounter();
  KernelCounter(const KernelCounter&) = delete;
  KernelCounter& operator=(const KernelCounter&) = delete;

  /// Returns the number of calls of an operator, for example "_flash_attention_forward".
  int64_t count(const std::string& name) const;
  int64_t cudnn() const;  ///< forward and backward
  int64_t all() const;    ///< of all attention operators

 private:
  uint64_t handle_;
};

}  // namespace meshtrain::testing
