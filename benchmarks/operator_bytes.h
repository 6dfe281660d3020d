#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace meshtrain {

/// Bytes of tensors that operators read and write.
struct OperatorBytes {
  int64_t read = 0;
  int64_t written = 0;
};

/// Counts, while it lives, what the operators read and write that this thread calls through the dispatcher: each
/// argument and result once, views not at all, an operator that calls others as one. Meta tensors count as if they had
/// memory. What a GPU's cache saves, and what a matrix product reads again, is not seen.
class CountedOperators {
 public:
  CountedOperators();
  ~CountedOperators();
  CountedOperators(const CountedOperators&) = delete;
  CountedOperators& operator=(const CountedOperators&) = delete;

  const OperatorBytes& bytes() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace meshtrain
