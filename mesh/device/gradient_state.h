#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace meshtrain {

/// The state of a leaf's gradient buffer, attached to the leaf by the owner of that memory (fsdp). It is written when
/// the buffer holds a gradient, and unwritten when the buffer holds old values that nobody may read. A layer that
/// computes a gradient reads the state (tensor_parallel/products/leaf_gradient.h). Gradients that a backward has left
/// to be computed later are deferred: the leaf's gradient is not final before the last of them.
class GradientState final : public torch::autograd::PostAccumulateGradHook {
 public:
  /// Attaches a state, written, to a leaf that requires a gradient; it replaces the leaf's post-accumulate hook.
  /// `when_final` is called in each backward when the leaf's gradient is final; while gradients are deferred, after the
  /// last of them instead.
  static void attach(const at::Tensor& leaf, std::function<void()> when_final);

  /// Returns the state of `leaf`; null where nobody attached one: its buffer, if it has one, is always written.
  static GradientState* of(const at::Tensor& leaf);

  bool written() const { return written_; }
  /// Sets the state; no gradient is deferred any more.
  void set_written(bool written) {
    written_ = written;
    num_deferred_ = 0;
  }
  /// Marks the buffer as written. Returns true when it was not: then the caller must write all of it, else add to it.
  bool take_unwritten() { return !std::exchange(written_, true); }

  bool deferred() const { return num_deferred_ > 0; }
  /// Notes that a gradient is computed after the backward that calls this.
  void defer() { ++num_deferred_; }
  /// Call after a deferred gradient was written or added to the buffer.
  void end_deferred() {
    if (--num_deferred_ == 0) when_final_();
  }

  void operator()(const at::Tensor&) override {
    if (!deferred()) when_final_();
  }

 private:
  explicit GradientState(std::function<void()> when_final) : when_final_(std::move(when_final)) {}

  std::function<void()> when_final_;
  bool written_ = true;
  int64_t num_deferred_ = 0;
};

}  // namespace meshtrain
