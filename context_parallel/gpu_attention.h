#pragma once

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

// attend() and attend_backward() of CUDA tensors, with the kernel of choose_attention(). They find LibTorch's operators
// through the dispatcher, which has them once its CUDA library is loaded.

AttentionResult attend_on_gpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                              const AttentionRule& rule);

AttentionGradients attend_backward_on_gpu(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended, bool causal,
                                          const AttentionRule& rule);

}  // namespace meshtrain
