#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace meshtrain {

/// The activations of a block that are computed again in the backward instead of kept.
enum class Recompute {
  Nothing,
  Elementwise,  ///< the outputs of norms and SwiGLU, from their inputs; those of matrix products and attention are kept
  All,          ///< everything, from the input of the block, or of each sublayer where these run in units of their own
};

/// The choice of blocks that compute again.
struct Recomputation {
  Recompute what = Recompute::Nothing;
  int64_t every = 1;                  ///< blocks 0, every, 2 every, ...; the others keep everything
  std::optional<int64_t> first = {};  ///< of these, only those among the first blocks of each stage; none: all
  std::vector<int64_t> stages = {};   ///< the number of blocks in each stage of a pipeline; empty: one stage

  Recompute of(int64_t block) const;
};

/// Returns function(inputs), and keeps only `inputs`, at least one tensor, for the backward. The backward calls
/// `function` again with the same values and differentiates this call. As without recomputation, gradients of the
/// leaves that `function` uses are accumulated in their buffers, and hooks on these leaves fire. `trainable`: some of
/// these leaves require a gradient.
///
/// Without recording it only returns function(inputs). The backward throws std::logic_error when it is itself recorded,
/// and under torch::autograd::grad, which could not return the gradients of the leaves.
at::Tensor recomputed(const std::vector<at::Tensor>& inputs,
                      std::function<at::Tensor(const std::vector<at::Tensor>&)> function, bool trainable);

}  // namespace meshtrain
