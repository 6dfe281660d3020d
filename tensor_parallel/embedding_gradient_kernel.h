#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/cuda/element.h"

namespace meshtrain::cuda {

/// Tokens in the order of their ids, those of one id in their own order.
struct SortedTokens {
  const int32_t* ids;    ///< [count], ascending; one that is no row of the table takes no part
  const int64_t* order;  ///< [count]: where the token stands among all
  int64_t count;
};

/// Rows of the fp32 buffer `partial` that embedding_gradient needs for so many tokens.
int64_t embedding_partial_rows(int64_t tokens);

/// into[id] += the fp32 sum of the id's tokens in grad [count, size], rounded once. into [rows, size] is fp32 or of the
/// dtype of `grad`; partial [embedding_partial_rows(), size] need not be initialised.
void embedding_gradient(Element element, Element into_element, const SortedTokens& tokens, const void* grad, void* into,
                        float* partial, int64_t rows, int64_t size, cudaStream_t stream);

}  // namespace meshtrain::cuda
