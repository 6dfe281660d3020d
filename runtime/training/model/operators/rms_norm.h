#pragma once

#include <string>

#include "mesh/parameter.h"
#include "runtime/training/model/pieces.h"
#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// Computes x [..., D] / sqrt(mean(x^2) + eps) * weight [D], over the last dim. Halves are computed in fp32 and rounded
/// where `applied` says, as in transformers. Differentiable; the weight's gradient is accumulated in place if the leaf
/// has one.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    NormWeight applied = NormWeight::Rounded);

/// The layer of rms_norm(). Zhang and Sennrich, "Root mean square layer normalization", 2019.
class RmsNorm {
 public:
  /// `partial_over`: the axis over whose ranks the weight's gradient must be summed, because each sees only some rows
  /// or heads; empty when each sees them all.
  RmsNorm(std::string name, int64_t size, double eps, NormWeight applied, std::string partial_over,
          const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x) const { return rms_norm(x, weight_.tensor, eps_, applied_); }
  /// Returns forward(x) as the input of a layer that computes it again in its backward, from x.
  LayerInput recomputed(const at::Tensor& x) const;

  struct Sum {
    at::Tensor sum;
    LayerInput normed;
  };
  /// Computes x + residual and its norm in one pass over both. `recompute`: a layer that takes `normed` computes it
  /// again in its backward, from the sum.
  Sum of_sum(const at::Tensor& x, const at::Tensor& residual, bool recompute) const;
  Parameter* weight() { return &weight_; }

 private:
  Parameter weight_;
  double eps_;
  NormWeight applied_;
};

}  // namespace meshtrain
