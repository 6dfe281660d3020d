#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "mesh/parameter.h"
#include "tensor_parallel/adapter_terms.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// Upper limit of a rank's logits that are alive at once. On the host a product of some hundred tokens runs at full
/// speed, and chunks of 16 to 128 MiB were equally fast; a GPU needs thousands of tokens, or it mostly reads weights.
inline constexpr int64_t kHostLogitBytes = int64_t{32} << 20;
inline constexpr int64_t kCudaLogitBytes = int64_t{1} << 30;
inline constexpr int64_t kCudaChunkTokens = 4096;  ///< fewer when kCudaLogitBytes cannot hold them

/// Returns the maximum number of tokens in a chunk, for `tokens` tokens in all, so that chunks are about equally large.
/// `rows`: rows of the vocabulary on each rank, with padding; `chunks_alive`: number of chunks that have logits at a
/// time. The result depends on nothing else, so all ranks cut alike, and a Meta tensor can be cut as for either device.
///
/// CPU and Meta tensors: logits of kHostLogitBytes. CUDA: 4,096 to 8,191 tokens, or all when there are fewer, but at
/// most the tokens that fit into kCudaLogitBytes: in bf16 that is 4,096 tokens of a vocabulary of 131,072 rows and
/// 2,048 of 262,144, in fp32 half as many, and with two chunks alive half of that again, for a rank's part of the
/// vocabulary. At least one token.
int64_t head_chunk_tokens(at::DeviceType device, int64_t tokens, int64_t rows, int64_t element_bytes, int chunks_alive);

/// A second loss, which keeps the logarithm of the softmax's denominator near 0: `coefficient` times the sum of
/// logsumexp(logits)² over the tokens that count (PaLM, arXiv 2204.02311, section 5).
struct LogitsZLoss {
  double coefficient = 0;  ///< 0: none
  at::Tensor sum = {};     ///< fp64 scalar on the device of x, to which the sum, without the coefficient, is added
};

/// Returns the sum of the losses of the tokens whose label is not `ignored`, with logits x W^T: a scalar, the same on
/// every tp rank, fp64 for fp64 and fp32 for all other dtypes.
///
/// x [T/tp, M] under sequence parallel, otherwise [T, M]; `head`: W [V, M], its rows cut over tp, rounded up; labels
/// int64 [T], the same on every tp rank, each `ignored` or an id of the vocabulary.
///
/// The complete logits and their gradient never exist: tokens are computed in chunks of at most `chunk_tokens`, by
/// default head_chunk_tokens(). Loss and gradients of a chunk are computed together, so that nothing is computed twice:
/// when a gradient is needed, **the backward computes the value, which is undefined before**. Without recording it is
/// computed at once.
///
/// For one rank one chunk is alive at a time. For several ranks two are, whose logits together stay within the bound:
/// the sums of a chunk are all-reduced while the next chunk's logits are computed, and the next chunk's maximum during
/// the gradients of this one. The backward also takes the memory of the gradient of x, and on the host that of
/// product_into() and add_product(). When the gradient of W, A or B is a half and there are several chunks, they are
/// added up in fp32 and rounded once.
///
/// `adapter`: at most one, whose term is added to the logits of each chunk; A is complete on every rank, B [V, rank] is
/// cut as W. Gradients of A are this rank's part of a sum over tp.
///
/// `softcap` c above 0: logits become c tanh(logits / c), as in Gemma 2; chunks are half as large then.
///
/// `z_loss`: its gradient is added to that of the cross-entropy, with the same factor; the value returned is the
/// cross-entropy's alone. z_loss.sum, the same on every tp rank, is complete when the value is.
///
/// Every tp rank must call it, and its backward. 3 T scalars are all-reduced, in two calls per chunk. Under sequence
/// parallel x is gathered once and its gradient is scattered; otherwise the gradient is all-reduced. Differentiable
/// once. If W has a gradient buffer, the gradient of W is added there.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Parameter& head, const at::Tensor& labels, int64_t ignored,
                                const TensorParallel& tp, std::optional<int64_t> chunk_tokens = std::nullopt,
                                double softcap = 0, const AdapterTerms& adapter = {}, const LogitsZLoss& z_loss = {});

}  // namespace meshtrain
