#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshtrain {

/// Returns a tensor that was saved for the backward: the same values, sizes and strides. The backward may call it on
/// another thread, and more than once.
using UnpackSaved = std::function<at::Tensor()>;
/// Takes a tensor that autograd saves. Autograd keeps the result instead and destroys it when the backward has used
/// it, or with the graph. `saved` shares the tensor's memory and is not recorded; the function must not change it.
using PackSaved = std::function<UnpackSaved(const at::Tensor& saved)>;

/// While it exists, tensors that autograd saves on this thread go to `pack`, those of LibTorch's operators and those of
/// our functions. Guards may be nested; the innermost counts. The backward gets another tensor than the saved one: a
/// leaf loses its gradient, so functions must keep leaves elsewhere. Autograd does not notice when a saved tensor is
/// changed in place.
///
/// The first guard of the process replaces LibTorch's autograd engine by one that asks for the guard: never make it
/// while a backward runs.
class SavedTensorsGuard {
 public:
  /// `pack` must live as long as the guard.
  explicit SavedTensorsGuard(const PackSaved& pack);
  ~SavedTensorsGuard();
  SavedTensorsGuard(const SavedTensorsGuard&) = delete;
  SavedTensorsGuard& operator=(const SavedTensorsGuard&) = delete;

 private:
  const PackSaved* before_;
};

}  // namespace meshtrain
