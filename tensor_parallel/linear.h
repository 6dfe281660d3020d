#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "tensor_parallel/adapter.h"
#include "tensor_parallel/linear_function.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// A layer y = x W^T + b with the output features cut over tp. Several named outputs (q, k, v; gate, up) share one
/// product; this is fastest when their weights, and their biases, are adjacent in memory (Parameter::follows_previous).
///
/// A value type whose parameters stay at their addresses until it is moved.
class ColumnParallelLinear {
 public:
  struct Output {
    std::string name;  ///< name of the layer: its parameters are "<name>.weight" [features, in] and "<name>.bias"
    int64_t features;
    std::optional<AdapterOptions> adapter = {};
  };

  /// Declares the parameters, without storage. Biases begin as zeros. Adapters of one layer have the same dropout.
  /// Throws InputError with output, features and tp when tp does not divide the features of an output.
  ColumnParallelLinear(const TensorParallel& tp, int64_t in_features, const std::vector<Output>& outputs, bool bias,
                       Initializer initializer, const at::TensorOptions& options);

  /// Applies the layer to x, [T/tp, in] under sequence parallel, otherwise [T, in]. Returns [T, sum of features / tp],
  /// this rank's part of each output side by side. Every tp rank must call it, and its backward. `tokens`: int64 [T],
  /// see drop(); undefined: the adapters drop nothing.
  at::Tensor forward(const LayerInput& x, const at::Tensor& tokens = {}) const;

  /// Returns the weights, then the biases, then the adapters' A, then their B.
  std::vector<Parameter*> parameters();

 private:
  TensorParallel tp_;
  std::vector<Parameter> weights_;
  std::vector<Parameter> biases_;
  std::vector<Adapter> adapters_;
  std::vector<int64_t> first_columns_;  ///< of each adapter's output
};

/// A layer y = x W^T + b with the input features cut over tp, the output of a ColumnParallelLinear.
class RowParallelLinear {
 public:
  /// Declares "<name>.weight" [out, in] and, with `bias`, "<name>.bias", without storage. Every rank holds the complete
  /// bias, which begins as zeros; under sequence parallel its gradient is partial over tp. Throws InputError with
  /// layer, features and tp when tp does not divide `in_features`.
  RowParallelLinear(const TensorParallel& tp, const std::string& name, int64_t in_features, int64_t out_features,
                    bool bias, Initializer initializer, const at::TensorOptions& options,
                    const std::optional<AdapterOptions>& adapter = {});

  /// Applies the layer to x [T, in/tp]. Returns [T/tp, out] under sequence parallel, otherwise [T, out]. Adds the bias
  /// once, after the reduction. Every tp rank must call it, and its backward. `tokens`: as for a column-parallel layer.
  at::Tensor forward(const LayerInput& x, const at::Tensor& tokens = {}) const;

  std::vector<Parameter*> parameters();

 private:
  TensorParallel tp_;
  Parameter weight_;
  std::vector<Parameter> bias_;   ///< one or none
  std::vector<Adapter> adapter_;  ///< one or none
};

}  // namespace meshtrain
