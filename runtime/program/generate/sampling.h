#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshtrain {

/// The choice of a token from its logits, with the defaults of transformers' GenerationConfig, as its LogitsWarpers
/// make it, in this order.
struct SamplingOptions {
  double temperature = 0;  ///< divides the logits; 0: the largest is taken, without a random draw
  int64_t top_k = 50;      ///< keeps that many of the largest, and those equal to the last of them; 0: all
  double top_p = 1;  ///< keeps of these the smallest set of the most likely whose probabilities reach it, at least one
  uint64_t seed = 0;
  double min_p = 0;  ///< keeps of these those that are at least this fraction as likely as the likeliest
};

/// A token that may be drawn.
struct Candidate {
  int64_t id;
  double weight;  ///< in proportion to its probability
};

/// Returns the values of `logits` [V], from any device, in fp64.
std::vector<double> values_of(const at::Tensor& logits);

/// Returns the tokens that `options`, of a temperature above 0, keep of `logits` [V], by ascending id. Of equal logits
/// at the limit of top_p those with the lowest ids are kept. Minus infinity is an excluded token; not all are excluded.
std::vector<Candidate> candidates(const std::vector<double>& logits, const SamplingOptions& options);

/// Returns the candidate at which the running sum of weights passes the fraction `uniform`, in [0, 1), of their total.
int64_t draw(const std::vector<Candidate>& candidates, double uniform);

/// Returns a number in [0, 1) for the token at `position` of a sequence, which depends on these three numbers alone
/// (mesh/base/philox.h).
double uniform_at(uint64_t seed, uint64_t sequence, uint64_t position);

}  // namespace meshtrain
