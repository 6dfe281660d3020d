#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// Tokens sorted by id; tokens with the same id keep their order.
struct SortedTokens {
  const int32_t* ids;    ///< [count], ascending; ids that are not rows of the table are skipped
  const int64_t* order;  ///< [count]: index of the token before sorting
  int64_t count;
};

/// Returns the number of rows of the fp32 buffer `partial` that embedding_gradient needs for `tokens` tokens.
int64_t embedding_partial_rows(int64_t tokens);

/// Adds to into[id] the fp32 sum of the id's tokens in grad [count, size], rounded once. into [rows, size]: fp32 or the
/// dtype of `grad`; partial [embedding_partial_rows(), size]: may be uninitialised.
void embedding_gradient(Element element, Element into_element, const SortedTokens& tokens, const void* grad, void* into,
                        float* partial, int64_t rows, int64_t size, cudaStream_t stream);

}  // namespace meshtrain::cuda
