#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshtrain {

/// How a token is chosen from its logits, as transformers' LogitsProcessors have it, in this order.
struct SamplingOptions {
  double temperature = 0;  ///< logits are divided by it; 0: the largest is taken, and nothing drawn
  int64_t top_k = 0;       ///< only the largest so many, and those equal to the last of them; 0: all
  double top_p = 1;  ///< of these only the smallest set of the likeliest whose probabilities reach it, at least one
  uint64_t seed = 0;
};

/// A token that may be drawn.
struct Candidate {
  int64_t id;
  double weight;  ///< in proportion to its probability
};

/// The tokens that `options`, of a temperature above 0, leave of `logits` [V], by ascending id. Of equal logits at the
/// border of top_p those with the lowest ids stay. Computed in fp64.
std::vector<Candidate> candidates(const at::Tensor& logits, const SamplingOptions& options);

/// The candidate at which the sum of weights passes `uniform`, in [0, 1), of all.
int64_t draw(const std::vector<Candidate>& candidates, double uniform);

/// In [0, 1), for the token at `position` of a sequence: depends on these three numbers alone
/// (runtime/random/philox.h).
double uniform_at(uint64_t seed, uint64_t sequence, uint64_t position);

}  // namespace meshtrain
