#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace meshtrain {

/// What of a block's activations is computed again in the backward instead of kept.
enum class Recompute {
  Nothing,
  Elementwise,  ///< what norms and SwiGLU give, from what they were given; matrix products and attention are kept
  All,          ///< everything, from the block's input
};

/// Which blocks compute again.
struct Recomputation {
  Recompute what = Recompute::Nothing;
  int64_t every = 1;  ///< blocks 0, every, 2 every, ...; the others keep everything

  Recompute of(int64_t block) const { return block % every == 0 ? what : Recompute::Nothing; }
};

/// function(x), of which nothing is kept for the backward but x: the backward calls `function` again, with the same
/// values, and goes through what that records. Gradients of leaves that `function` uses are accumulated in their
/// buffers, and hooks on those leaves fire, as they would without. `trainable`: there are such leaves that want a
/// gradient.
///
/// Without recording it is function(x) alone. The backward throws std::logic_error when it is itself recorded, or when
/// gradients are asked for by torch::autograd::grad, which could not return those of the leaves.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> function, bool trainable);

}  // namespace meshtrain
