#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "tensor_parallel/operators/dropout.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// The options of a linear layer's adapter.
struct AdapterOptions {
  int64_t rank = 0;      ///< at least 1
  double scale = 1;      ///< of the adapter's output: alpha / rank, or alpha / sqrt(rank) (rsLoRA)
  Dropout dropout = {};  ///< of the adapter's input; layers that share an input and its dropout's key share the choice
  Initializer initializer = {};  ///< of A; B begins as zeros unless `initializer_of_b` says otherwise
  Initializer initializer_of_b = {};
};

/// Two factors that are trained beside the weight of a linear layer (Hu et al., "LoRA", 2021):
/// y = x W^T + b + scale * drop(x) A^T B^T.
///
/// Under tensor parallelism a factor is cut where the layer is: B by rows in a column-parallel layer, A by columns in a
/// row-parallel one. The other factor is complete on every rank, and its gradient is partial over tp, with or without
/// sequence parallel: each rank has the part of its features.
struct Adapter {
  Parameter a;  ///< "<layer>.lora_A.weight" [rank, in]
  Parameter b;  ///< "<layer>.lora_B.weight" [out, rank]
  double scale;
  Dropout dropout;
};

/// Declares the adapter of a column-parallel layer, without storage.
Adapter column_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                                int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options);
/// Declares the adapter of a row-parallel layer, without storage.
Adapter row_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                             int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options);

}  // namespace meshtrain
