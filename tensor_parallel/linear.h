#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "tensor_parallel/linear_function.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// y = x W^T + b with the output features cut over tp. Several named outputs (q, k, v; gate, up) share one product:
/// their weights, and their biases, want to lie one behind the other (Parameter::follows_previous).
///
/// A value whose parameters stay where they are as long as it is not moved.
class ColumnParallelLinear {
 public:
  struct Output {
    std::string name;  ///< of the layer: its parameters are "<name>.weight" [features, in] and "<name>.bias"
    int64_t features;
  };

  /// Declares the parameters, without storage. Biases begin as zeros. Throws InputError, naming output, features and
  /// tp, when tp does not divide the features of an output.
  ColumnParallelLinear(const TensorParallel& tp, int64_t in_features, const std::vector<Output>& outputs, bool bias,
                       Initializer initializer, const at::TensorOptions& options);

  /// x [T/tp, in] under sequence parallel, else [T, in] -> [T, sum of features / tp], this rank's part of each output
  /// side by side. Every tp rank must call it, and its backward.
  at::Tensor forward(const LayerInput& x) const;

  /// Weights first, then biases.
  std::vector<Parameter*> parameters();

 private:
  TensorParallel tp_;
  std::vector<Parameter> weights_;
  std::vector<Parameter> biases_;
};

/// y = x W^T + b with the input features cut over tp: what follows a ColumnParallelLinear.
class RowParallelLinear {
 public:
  /// Declares "<name>.weight" [out, in] and, with `bias`, "<name>.bias", without storage. The bias is whole on every
  /// rank and begins as zeros; under sequence parallel its gradient is partial over tp. Throws InputError, naming
  /// layer, features and tp, when tp does not divide `in_features`.
  RowParallelLinear(const TensorParallel& tp, const std::string& name, int64_t in_features, int64_t out_features,
                    bool bias, Initializer initializer, const at::TensorOptions& options);

  /// x [T, in/tp] -> [T/tp, out] under sequence parallel, else [T, out]. The bias is added once, after the reduction.
  /// Every tp rank must call it, and its backward.
  at::Tensor forward(const LayerInput& x) const;

  std::vector<Parameter*> parameters();

 private:
  TensorParallel tp_;
  Parameter weight_;
  std::vector<Parameter> bias_;  ///< one or none
};

}  // namespace meshtrain
