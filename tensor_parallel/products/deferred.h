#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace meshtrain {

/// A product, the gradient of weights, that a backward has left to be computed later.
struct DeferredGradient {
  std::vector<at::Tensor> leaves;  ///< with a GradientState; the product writes to or adds to their buffers
  std::function<void()> start;     ///< starts the communication that `compute` awaits; empty: none
  std::function<void()> compute;   ///< must not read the leaves' values, whose memory may be lent to others
};

/// The gradients that a backward has deferred, in its order. They keep what they need, the layers' inputs and the
/// gradients of their outputs, until they are computed.
class DeferredGradients {
 public:
  /// Notes in the leaves' states that a gradient is deferred.
  void add(DeferredGradient gradient);
  size_t size() const { return gradients_.size(); }

  /// Computes each gradient, with the communication of the next one under way, and releases it. Every rank that has
  /// run the backward must call it, and in the order of the backwards: gradients are added up in the order of calls.
  void compute();

 private:
  std::deque<DeferredGradient> gradients_;
};

/// While it exists, backwards that this thread runs leave to `gradients` what layers can compute later: also in the
/// threads of autograd, where the backward of tensors on a GPU runs.
class DeferringBackward {
 public:
  /// `gradients` must outlive this.
  explicit DeferringBackward(DeferredGradients& gradients);

  /// Returns the gradients to add to, of the backward that runs in this thread; null when it computes everything.
  static DeferredGradients* current();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace meshtrain
