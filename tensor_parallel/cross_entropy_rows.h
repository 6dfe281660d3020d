#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

// Cross-entropy of logits [n, v], n tokens on this rank's v ids of the vocabulary, between the collectives that sum it
// up over the others. v is at least 1. Numbers of a token are [n], of the accumulation dtype (fp32 for halves).

/// Which logit is a token's own.
struct RowLabels {
  at::Tensor column;   ///< int64 [n], 0 where absent
  at::Tensor absent;   ///< bool [n]: the label is another rank's, or ignored
  at::Tensor ignored;  ///< bool [n]
};

/// Statistics of each token's logits, [3, n], in one pass over them:
///   [0] the largest, or NaN where one is NaN;
///   [1] the sum of exp(logit - the largest);
///   [2] the label's logit, 0 where absent.
/// `logits` may be written over: what they are afterwards is for row_gradients() alone.
at::Tensor row_statistics(const at::Tensor& logits, const RowLabels& labels);

/// The gradient of the logits in their memory, when that of the sum of the losses is the scalar `upstream`. `own_max`
/// is row_statistics()[0]; `max` and `sum_exp`, the sum of exp(logit - max), are those over the whole vocabulary.
void row_gradients(const at::Tensor& logits, const at::Tensor& own_max, const at::Tensor& max,
                   const at::Tensor& sum_exp, const RowLabels& labels, const at::Tensor& upstream);

}  // namespace meshtrain
