#pragma once

#include <string>

#include "mesh/parameter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// RMSNorm of queries or keys over all heads of a position, whose heads are cut over tp: x / sqrt(mean(x^2) + eps) *
/// weight, the mean over the features of all ranks. Halves are computed in fp32 and rounded at the end, as in
/// transformers' OLMo 2.
class HeadsNorm {
 public:
  /// Declares the weight [heads * D], cut over tp as the heads are, without storage. `heads`: of all ranks.
  HeadsNorm(const std::string& name, int64_t heads, int64_t head_dim, double eps, const TensorParallel& tp,
            const at::TensorOptions& options);

  /// Normalises x [B, s, heads of this rank, D] -> the same shape. Communicates one fp32 (fp64) number for each
  /// position, and again in the backward. Every tp rank must call it, and its backward. Differentiable once; the
  /// weight's gradient is accumulated in place if the leaf has one.
  at::Tensor forward(const at::Tensor& x) const;
  Parameter* weight() { return &weight_; }

 private:
  Parameter weight_;
  double eps_;
  Group group_;
};

}  // namespace meshtrain
