#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <vector>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// One call of attention, from its forward to its backward; each algorithm of context parallelism is a subclass.
/// Tensors are those of attention(). Neither function records for autograd.
class AttentionCall : public torch::CustomClassHolder {
 public:
  struct Forward {
    at::Tensor out;                 ///< [B, H, s, D], in memory [B, s, H, D]
    std::vector<at::Tensor> saved;  ///< inputs of backward()
  };

  virtual Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) = 0;
  /// Returns gradients in memory [B, s, heads, D], in the dtypes of q, k and v.
  virtual AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) = 0;
};

}  // namespace meshtrain
