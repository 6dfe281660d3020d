#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "tensor_parallel/adapter_terms.h"
#include "tensor_parallel/operators/dropout.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// The options of the adapter of a linear layer or an embedding.
struct AdapterOptions {
  int64_t rank = 0;      ///< at least 1
  double scale = 1;      ///< of the adapter's output: alpha / rank, or alpha / sqrt(rank) (rsLoRA)
  Dropout dropout = {};  ///< of the adapter's input; layers that share an input and its dropout's key share the choice
  Initializer initializer = {};       ///< of A
  Initializer initializer_of_b = {};  ///< by default zeros
};

/// Two factors that are trained beside the weight of a linear layer (Hu et al., "LoRA", 2021):
/// y = x W^T + b + scale * drop(x) A^T B^T.
///
/// Under tensor parallelism a factor is cut where the layer is: B by rows in a column-parallel layer, A by columns in a
/// row-parallel one. The other factor is complete on every rank, and its gradient is partial over tp, with or without
/// sequence parallel: each rank has the part of its features.
///
/// Beside an embedding, which has no dropout: y = W[id] + scale * A[id] B^T. A has one row for each token, as W; PEFT
/// has the transpose. A is cut over tp as W, and the gradient of B is partial over tp.
struct Adapter {
  Parameter a;  ///< "<layer>.lora_A.weight" [rank, in], or "<embedding>.lora_embedding_A" [V, rank]
  Parameter b;  ///< "<layer>.lora_B.weight" [out, rank], or "<embedding>.lora_embedding_B" [M, rank]
  double scale;
  Dropout dropout;
};

/// Declares the adapter of a column-parallel layer, without storage. tp need not divide the outputs: B is rounded up.
Adapter column_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                                int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options);
/// Declares the adapter of a row-parallel layer, without storage.
Adapter row_parallel_adapter(const TensorParallel& tp, const std::string& layer, int64_t in_features,
                             int64_t out_features, const AdapterOptions& adapter, const at::TensorOptions& options);
/// Declares the adapter of a vocabulary-parallel embedding [V, M], without storage.
Adapter embedding_adapter(const TensorParallel& tp, const std::string& embedding, int64_t vocab_size,
                          int64_t hidden_size, const AdapterOptions& adapter, const at::TensorOptions& options);

/// Returns the terms of adapters of one layer, which have the same dropout; of none: no terms. `first_columns`: of each
/// adapter's output; `tokens`: see AdapterTerms.
AdapterTerms adapter_terms(const std::vector<Adapter>& adapters, const std::vector<int64_t>& first_columns,
                           const at::Tensor& tokens = {});

}  // namespace meshtrain
