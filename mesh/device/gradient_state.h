#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <utility>

namespace meshtrain {

/// The state of a leaf's gradient buffer, attached to the leaf by the owner of that memory (fsdp). It is written when
/// the buffer holds a gradient, and unwritten when the buffer holds old values that nobody may read. A layer that
/// computes a gradient reads the state (tensor_parallel/products/leaf_gradient.h).
class GradientState final : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Attaches a state, written, to a leaf that requires a gradient; it replaces the leaf's post-accumulate hook.
  /// `when_final` is called in each backward when the leaf's gradient is final.
  static void attach(const at::Tensor& leaf, std::function<void()> when_final);

  /// Returns the state of `leaf`; null where nobody attached one: its buffer, if it has one, is always written.
  static GradientState* of(const at::Tensor& leaf);

  bool written() const { return written_; }
  void set_written(bool written) { written_ = written; }
  /// Marks the buffer as written. Returns true when it was not: then the caller must write all of it, else add to it.
  bool take_unwritten() { return !std::exchange(written_, true); }

  void operator()(const at::Tensor&) override { when_final_(); }

 private:
  explicit GradientState(std::function<void()> when_final) : when_final_(std::move(when_final)) {}

  std::function<void()> when_final_;
  bool written_ = true;
};

}  // namespace meshtrain
