#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

// Cross-entropy of logits [n, v], n tokens on this rank's v ids of the vocabulary, without the collectives that sum
// over the ranks. v is at least 1. The numbers of a token are [n], in the accumulation dtype (fp32 for halves).

/// The column of each token's label.
struct RowLabels {
  at::Tensor column;   ///< int64 [n], 0 where absent
  at::Tensor absent;   ///< bool [n]: another rank has the label, or it is ignored
  at::Tensor ignored;  ///< bool [n]
};

/// Returns statistics of each token's logits, [3, n], in one pass over them:
///   [0] the largest, or NaN when one is NaN;
///   [1] the sum of exp(logit - the largest);
///   [2] the label's logit, 0 where absent.
/// May overwrite `logits`; only row_gradients() may read them afterwards.
at::Tensor row_statistics(const at::Tensor& logits, const RowLabels& labels);

/// Writes the gradient of the logits into their memory. `upstream`: scalar gradient of the sum of the losses;
/// `own_max`: row_statistics()[0]; `max` and `sum_exp`, the sum of exp(logit - max): over the complete vocabulary.
void row_gradients(const at::Tensor& logits, const at::Tensor& own_max, const at::Tensor& max,
                   const at::Tensor& sum_exp, const RowLabels& labels, const at::Tensor& upstream);

}  // namespace meshtrain
