#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshtrain::testing {

/// A record of the tensors that `aten::zero_` is called for on this thread, while this object lives. One at a time.
class ZeroRecorder {
 public:
  ZeroRecorder();
  ~ZeroRecorder();
  ZeroRecorder(const ZeroRecorder&) = delete;
  ZeroRecorder& operator=(const ZeroRecorder&) = delete;

  const std::vector<at::Tensor>& tensors() const;

 private:
  uint64_t handle_;
};

}  // namespace meshtrain::testing
