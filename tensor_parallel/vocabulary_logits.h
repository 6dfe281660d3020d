#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/parameter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// The logits of one token over the vocabulary, of which each tp rank has computed those of its own rows of the head.
class VocabularyLogits {
 public:
  /// x [M], the same on every tp rank; `head`: W [V, M], its rows cut over tp, rounded up. Computes x W^T; no
  /// collective. Not differentiable. Throws std::invalid_argument for an x of another shape.
  VocabularyLogits(const at::Tensor& x, const Parameter& head, const TensorParallel& tp);

  struct Largest {
    int64_t id;
    double value;
  };
  /// The largest, of equal ones that of the lowest id; what is not a number is larger than all, as to torch.argmax. Two
  /// numbers of each rank travel. Every tp rank must call it, and gets the same.
  Largest largest() const;

  /// [V], of the dtype of x, on every tp rank, which must all call it.
  at::Tensor whole() const;

 private:
  Group group_;
  int64_t vocab_size_;
  int64_t first_;
  int64_t valid_;
  at::Tensor local_;  // [V/tp rounded up]
};

}  // namespace meshtrain
