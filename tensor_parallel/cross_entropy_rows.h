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

/// The largest logit of each token.
at::Tensor row_maxima(const at::Tensor& logits);

/// Of the exponentials of what logits are above `max`, the sum into sums[0]; the label's logit, 0 where absent, into
/// sums[1]. `logits` may be written over: what they are afterwards is for row_gradients() alone.
void row_sums(const at::Tensor& logits, const at::Tensor& max, const RowLabels& labels, const at::Tensor& sums);

/// The gradient of the logits in their memory, when that of the sum of the losses is the scalar `upstream`. `max` and
/// `sum_exp` are those over the whole vocabulary.
void row_gradients(const at::Tensor& logits, const at::Tensor& max, const at::Tensor& sum_exp, const RowLabels& labels,
                   const at::Tensor& upstream);

}  // namespace meshtrain
