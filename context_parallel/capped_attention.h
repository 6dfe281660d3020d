#pragma once

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

// attend() and attend_backward() for a rule with a softcap, which no fused kernel has: scores are materialised for some
// queries at a time, at most kMostScores of them, in fp32 (fp64 for fp64), on any device, and results have that dtype.
// `pairs`: all or causal ones.

inline constexpr int64_t kMostScores = int64_t{1} << 22;

AttentionResult attend_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Pairs pairs,
                              const AttentionRule& rule);

AttentionGradients attend_capped_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended, Pairs pairs,
                                          const AttentionRule& rule);

}  // namespace meshtrain
