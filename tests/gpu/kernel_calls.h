#pragma once

#include <cstdint>
#include <string>

namespace meshtrain::testing {

/// Counts calls of LibTorch's operators of attention, and of pin_memory, in this process, on all threads, from
/// construction to destruction. One at a time.
class KernelCalls {
 public:
  KernelCalls();
  ~KernelCalls();
  KernelCalls(const KernelCalls&) = delete;
  KernelCalls& operator=(const KernelCalls&) = delete;

  /// The calls of an operator, "_flash_attention_forward" for one.
  int64_t count(const std::string& name) const;
  int64_t cudnn() const;  ///< both ways
  int64_t all() const;    ///< of attention, whichever

 private:
  uint64_t handle_;
};

}  // namespace meshtrain::testing
