#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

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

  auto operator<=>(const AttentionShape&) const = default;
};

/// Who computes it, forward and backward: the first line of a fixed table that fits, so that every rank and every run
/// comes to the same. Throws std::invalid_argument, saying what to change, where none does.
AttentionKernel choose_attention(const AttentionShape& shape);

/// True when CUDA computes the documents of divided samples in one call, of variable-length flash attention. A document
/// that it does not take (fp32, large heads) is a call of its own, of a kernel that keeps nothing by shape. cuDNN,
/// which builds a plan for each exact shape and keeps it, never sees a divided sample: document lengths have no end.
bool takes_documents(c10::ScalarType dtype, int64_t head_dim);

/// Notes a call of it for chosen_attention(); of its lengths only whether it is causal.
void note_documents(AttentionShape shape);

/// "cudnn", "flash", "efficient".
const char* name(AttentionKernel kernel);

/// The choices that this process has made, a line each: "cudnn: 4096 queries, 4096 keys, causal, 32 heads of 64 over 8
/// KV heads, BFloat16". Calls of many documents are one line, "flash: documents of any lengths, causal, ..."; of many
/// shapes some are named, and how many more there are. On any thread.
std::vector<std::string> chosen_attention();

}  // namespace meshtrain
