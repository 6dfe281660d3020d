#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshtrain {

/// Returns true when `b` begins in memory where `a` ends: both contiguous, with the same dtype, storage and extents
/// except dim 0.
bool adjacent(const at::Tensor& a, const at::Tensor& b);

/// Joins tensors along dim 0: a view when each is adjacent to the next, otherwise a copy. Not differentiable.
at::Tensor join(const std::vector<at::Tensor>& parts);

/// The memory for the gradient of a leaf in a backward.
struct GradientTarget {
  at::Tensor buffer;       ///< [shape of the leaf], of any floating dtype; undefined: return the gradient to autograd
  bool unwritten = false;  ///< true: the buffer has old values, NaN perhaps, so write all of it; false: add to it
};

/// Returns the gradient buffer of `leaf` and marks it as written: the backward that calls this must write or add to it.
/// Undefined when the gradient must be returned to autograd instead: there is no buffer yet, hooks need the gradient,
/// torch::autograd::grad requested it, or `leaf` is not a leaf. Sets an unwritten buffer to zero when autograd will add
/// to it.
GradientTarget gradient_target(const at::Tensor& leaf);

/// Returns true when the gradient of `leaf` may be computed after the backward that calls this (DeferredGradients): it
/// goes into a buffer, whose owner has attached a GradientState.
bool can_be_deferred(const at::Tensor& leaf);

/// Returns the buffer of gradient_target() to add to, set to zero if it was unwritten.
at::Tensor gradient_in_place(const at::Tensor& leaf);

/// Throws std::logic_error, naming `operation`, in a backward that is recorded itself (create_graph): the second
/// derivative would lack the operation's collectives and the gradients that it writes in place.
void require_first_order(const char* operation);

/// Consecutive leaves of one product whose gradients can be computed at once.
struct LeafRun {
  size_t begin;           ///< index of the first leaf
  size_t end;             ///< index after the last leaf
  int64_t first_row;      ///< first row of the run in the leaves joined along dim 0
  int64_t rows;           ///< number of rows of the run
  GradientTarget target;  ///< memory for the gradients of all leaves, joined: [rows, ...]
};

/// Returns the runs of those `leaves` whose gradients are `needed`.
std::vector<LeafRun> leaf_runs(const std::vector<at::Tensor>& leaves, const std::vector<bool>& needed);

}  // namespace meshtrain
