#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace meshtrain {

/// The activations of a block that are computed again in the backward instead of kept.
enum class Recompute {
  Nothing,
  Elementwise,  ///< the outputs of norms and SwiGLU, from their inputs; those of matrix products and attention are kept
  All,          ///< everything, from the block's input
};

/// The choice of blocks that compute again.
struct Recomputation {
  Recompute what = Recompute::Nothing;
  int64_t every = 1;  ///< blocks 0, every, 2 every, ...; the others keep everything

  Recompute of(int64_t block) const { return block % every == 0 ? what : Recompute::Nothing; }
};

/// Returns function(x) and keeps nothing but x for the backward, which calls `function` again, with the same values,
/// and differentiates that. Gradients of leaves that `function` uses are accumulated in their buffers, and hooks on
/// those leaves fire, as they would without. `trainable`: some of these leaves require a gradient.
///
/// Without recording it only returns function(x). The backward throws std::logic_error when it is itself recorded, and
/// under torch::autograd::grad, which could not return the gradients of the leaves.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> function, bool trainable);

}  // namespace meshtrain
