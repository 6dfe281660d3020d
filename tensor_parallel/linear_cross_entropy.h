#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "mesh/parameter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// Logits that are alive at once, at most, on a rank. On the host a product of some hundred tokens runs at full speed,
/// and chunks of 16 to 128 MiB were equally fast; a GPU wants thousands of tokens, or it mostly reads weights.
inline constexpr int64_t kHostLogitBytes = int64_t{32} << 20;
inline constexpr int64_t kCudaLogitBytes = int64_t{1} << 30;
inline constexpr int64_t kCudaChunkTokens = 4096;  ///< fewer are taken where kCudaLogitBytes cannot hold them

/// Tokens of a chunk, at most, when there are `tokens` in all: as many as make chunks about equally large. `rows` of
/// the vocabulary are on each rank, padding included; `chunks_alive` chunks have logits at a time. It depends on
/// nothing else, so all ranks cut alike, and a Meta tensor may be cut as either device would.
///
/// On the CPU, and on Meta tensors: logits of kHostLogitBytes. On CUDA: 4,096 to 8,191 tokens, all where there are
/// fewer, but no more than kCudaLogitBytes hold: in bf16 that is 4,096 tokens of a vocabulary of 131,072 rows and 2,048
/// of 262,144, in fp32 half as many, and with two chunks alive half of that again, on a rank's share of the vocabulary.
/// One token at least.
int64_t head_chunk_tokens(at::DeviceType device, int64_t tokens, int64_t rows, int64_t element_bytes, int chunks_alive);

/// Sum of the losses of the tokens whose label is not `ignored`, their logits being x W^T: a scalar, the same on every
/// tp rank, fp64 for fp64 and fp32 for all others.
///
/// x [T/tp, M] under sequence parallel, else [T, M]; `head`: W [V, M], its rows cut over tp, rounded up; labels int64
/// [T], the same on every tp rank, each `ignored` or an id of the vocabulary.
///
/// Neither logits nor their gradient ever exist as a whole: tokens are computed in chunks of `chunk_tokens` at most, by
/// default of head_chunk_tokens(). Loss and gradients of a chunk are computed together, so nothing is computed twice:
/// where a gradient will be wanted **the value is computed by the backward, and not a number until then**. Without
/// recording it is computed at once.
///
/// Over one rank one chunk is alive at a time. Over several two are, whose logits together stay within the bound: the
/// sums of a chunk are all-reduced while the next chunk's logits are computed, and that chunk's maximum while the
/// gradients of this one are. Beside them the backward takes the gradient of x, and on the host what product_into() and
/// add_product() take.
///
/// Every tp rank must call it, and its backward. 3 T scalars are all-reduced, in two calls a chunk. x is gathered under
/// sequence parallel, once, and its gradient scattered; else the gradient is all-reduced. Once differentiable. The
/// gradient of W is added in place where W has a gradient buffer.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Parameter& head, const at::Tensor& labels, int64_t ignored,
                                const TensorParallel& tp, std::optional<int64_t> chunk_tokens = std::nullopt);

}  // namespace meshtrain
