#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshtrain {

/// Whether `b` begins in memory where `a` ends: both contiguous, of one dtype and storage, and of the same extents
/// but for dim 0.
bool adjacent(const at::Tensor& a, const at::Tensor& b);

/// Tensors one behind the other along dim 0: a view where each is adjacent to the next, a copy otherwise. Not
/// differentiable.
at::Tensor join(const std::vector<at::Tensor>& parts);

/// The place for the gradient of a leaf in a backward.
struct GradientTarget {
  at::Tensor buffer;       ///< [shape of the leaf], of any floating dtype; undefined: return the gradient to autograd
  bool unwritten = false;  ///< what the buffer holds is left over, NaN perhaps: write all of it; else add to it
};

/// Inside a backward, which must then write or add: the gradient buffer of `leaf`, from here on written. Undefined when
/// the gradient has to be returned to autograd instead: there is no buffer yet, hooks want to see the gradient,
/// torch::autograd::grad asked for it, or `leaf` is no leaf. An unwritten buffer that autograd will add to is set to
/// zero.
GradientTarget gradient_target(const at::Tensor& leaf);

/// The buffer of gradient_target(), to add to: set to zero if it was unwritten.
at::Tensor gradient_in_place(const at::Tensor& leaf);

/// Neighbours among the leaves of one product whose gradients can be computed at once.
struct LeafRun {
  size_t begin;           ///< index of the first leaf
  size_t end;             ///< index behind the last
  int64_t first_row;      ///< where the run begins in the leaves joined along dim 0
  int64_t rows;           ///< and how many rows it has there
  GradientTarget target;  ///< of all its leaves, whose gradient buffers are joined: [rows, ...]
};

/// The runs of `leaves` whose gradients are `needed`; those that are not take no part.
std::vector<LeafRun> leaf_runs(const std::vector<at::Tensor>& leaves, const std::vector<bool>& needed);

}  // namespace meshtrain
