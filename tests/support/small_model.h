#pragma once

#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain::testing {

/// Returns the dtypes of a run in `compute`; `mixed`: with shards and sums of gradients in fp32.
inline Precision precision_in(at::ScalarType compute, bool mixed = false) {
  return {.compute = compute, .residual = compute, .mixed = mixed, .reduce = mixed ? at::kFloat : compute};
}

/// Returns options that train a Llama of two layers and few features on one rank, two sequences at a time.
inline TrainingOptions small_model() {
  TrainingOptions options;
  options.seed = 42;
  options.batch = {.sequence_length = 16, .global_batch = 2, .micro_batch = 2};
  ModelShape& shape = options.shape;
  shape.hidden_size = 32;
  shape.intermediate_size = 48;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = 4;
  shape.num_key_value_heads = 2;
  shape.head_dim = 8;
  shape.vocab_size = 64;
  return options;
}

}  // namespace meshtrain::testing
