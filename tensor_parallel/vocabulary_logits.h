#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/parameter.h"
#include "tensor_parallel/adapter_terms.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// The logits of one token over the vocabulary. Each tp rank has those of its own rows of the head.
class VocabularyLogits {
 public:
  /// Computes x W^T, and with a `softcap` c above 0 c tanh(x W^T / c). x [M]: the same on every tp rank; `head`: W [V,
  /// M], its rows cut over tp, rounded up; `adapter`: as for linear_cross_entropy(). Not collective, not
  /// differentiable. Throws std::invalid_argument for an x of another shape.
  VocabularyLogits(const at::Tensor& x, const Parameter& head, const TensorParallel& tp, double softcap = 0,
                   const AdapterTerms& adapter = {});

  struct LargestLogit {
    int64_t id;
    double value;
  };
  /// Returns the largest logit, with the lowest id among equal ones. Not-a-number is larger than all numbers, as for
  /// torch.argmax. Communicates two numbers per rank. Every tp rank must call it and gets the same result.
  LargestLogit largest() const;

  /// Gathers all logits, [V] in the dtype of x, on every tp rank. All of them must call it.
  at::Tensor full() const;

 private:
  Group group_;
  int64_t vocab_size_;
  int64_t first_;
  int64_t valid_;
  at::Tensor local_;  // [V/tp rounded up]
};

}  // namespace meshtrain
