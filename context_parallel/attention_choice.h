#pragma once

#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

/// LibTorch's attention kernels on a GPU.
enum class AttentionKernel {
  CuDnn,      ///< cuDNN's kernels
  Flash,      ///< Dao, "FlashAttention-2", 2023
  Efficient,  ///< Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021; the only one for fp32
};

/// The shape of one call of attention.
struct AttentionShape {
  c10::ScalarType dtype;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_queries;  ///< queries of one sequence
  int64_t num_keys;
  bool causal;
  int64_t window = 0;  ///< of a causal call: keys that a query sees at most; 0: all before

  auto operator<=>(const AttentionShape&) const = default;
};

/// Returns the kernel for forward and backward: the first line of a fixed table that fits, so every rank and every run
/// on GPUs of one architecture (CudaPlugin::architecture()) gets the same. Throws std::invalid_argument, which says
/// what to change, when none fits.
AttentionKernel choose_attention(const AttentionShape& shape, int architecture);

/// Returns true when CUDA computes the documents of divided samples, and the window of a causal block, in one call of
/// flash attention. Other documents and windows (fp32, large heads) are several calls of a kernel that stores nothing
/// per shape. LibTorch's variable-length form of that kernel is not used, because it pads the log-sum-exp of every
/// document to the longest and repeats KV heads. cuDNN builds and keeps a plan for each exact shape, so it never gets a
/// divided sample: the number of document lengths has no limit.
bool flash_takes(c10::ScalarType dtype, int64_t head_dim);

/// Notes such a call for chosen_attention(): whether it is causal, and its window, but not its lengths.
void note_documents(AttentionShape shape);

/// Returns "cudnn", "flash" or "efficient".
const char* name(AttentionKernel kernel);

/// Returns the choices that this process has made, one line each: "cudnn: 4096 queries, 4096 keys, causal, 32 heads of
/// 64 over 8 KV heads, BFloat16". Calls with many documents share one line, "flash: documents of any lengths, causal,
/// ..."; of many shapes the lines name some and count the others. Any thread may call it.
std::vector<std::string> chosen_attention();

}  // namespace meshtrain
