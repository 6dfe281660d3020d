#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace meshtrain {

/// LibTorch's kernels of attention on a GPU.
enum class AttentionKernel {
  CuDnn,      ///< of cuDNN
  Flash,      ///< Dao, "FlashAttention-2", 2023
  Efficient,  ///< Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021; the only one for fp32
};

/// What one call of attention looks like.
struct AttentionShape {
  c10::ScalarType dtype;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_queries;  ///< of a sequence
  int64_t num_keys;
  bool causal;
};

/// Who computes it, forward and backward: the first line of a fixed table that fits, so that every rank and every run
/// comes to the same. Throws std::invalid_argument, saying what to change, where none does.
AttentionKernel choose_attention(const AttentionShape& shape);

/// "cudnn", "flash", "efficient".
const char* name(AttentionKernel kernel);

}  // namespace meshtrain
