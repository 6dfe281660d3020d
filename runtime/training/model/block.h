#pragma once

#include <optional>

#include "runtime/training/model/attention.h"
#include "runtime/training/model/feed_forward.h"
#include "runtime/training/model/mixture_of_experts.h"
#include "runtime/training/model/recompute.h"

namespace meshtrain {

/// One layer of the transformer: x + m * attention(x), then that + m * feed_forward(that), with norms where the family
/// has them (NormPlacement) and m its residual multiplier. A mixture of experts takes the place of the feed-forward
/// layer in the layers that have one.
///
/// Bytes that a block with a feed-forward layer keeps for its backward, for each token of this rank. M hidden and F
/// feed-forward features, H query and K KV heads of D features, Q = H D, KV = K D; e bytes an element, s bytes of the
/// residual stream, w = 4 (8 for fp64); t ranks of tp, r = t under sequence parallel, else 1:
///   inputs of two norms and their scales           (2 M s + 2 w) / r
///   q, k, v, attention's output and log-sum-exp    ((2 Q + 2 KV) e + H w) / t
///   gate and up                                    2 F e / t
///   outputs of norms and SwiGLU                    2 M e / r + F e / t, not with Recompute::Elementwise
///   norms over q and k (Qwen3)                     ((Q + KV) e + (H + K) w) / t
///   Ulysses, R = kv_head_repeats()                 (Q + 2 (R - 1) KV) e / t; KV e / t more with norms over q and k
/// Recompute::All keeps the input, M s / r, and M e / r more where sublayers run in units of their own. Its backward
/// has the activations of one block, or one sublayer, at a time, and repeats the collectives of the forward.
class Block {
 public:
  /// `layer`: its index in the model.
  Block(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
        const at::TensorOptions& options, Recompute recompute);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Computes the layer: x [T, M] (its tp part under sequence parallel) -> the same shape and dtype: that of
  /// `options`, or fp32, in which the sums then are. The backward issues the
  /// collectives of what it computes again, in the same order on every rank.
  at::Tensor forward(const at::Tensor& x, const Sequence& sequence) const;

  /// Compute the block in two calls: feed(x, attend(x, s), s) has the bits of forward(x, s). Each call uses only its
  /// own parameters, in recomputation too. attend() returns the term that attention adds to x, in the dtype of
  /// `options`. `attended`: the result of attend().
  at::Tensor attend(const at::Tensor& x, const Sequence& sequence) const;
  at::Tensor feed(const at::Tensor& x, const at::Tensor& attended, const Sequence& sequence) const;

  /// Returns the parameters of attend(), then those of feed().
  std::vector<Parameter*> parameters();
  /// Returns the parameters of attention and of the norms before and after it.
  std::vector<Parameter*> attention_parameters();
  /// Returns the parameters of the feed-forward layer and of the norms before and after it.
  std::vector<Parameter*> feed_forward_parameters();
  /// Returns the parameters of experts that are cut over ep, which are not among the others; often none.
  std::vector<Parameter*> cut_experts();
  /// Sets the function in which the weights of cut_experts() are there; call it only where there are some.
  void use_experts_in(WithExperts with_experts) { mixture_->use_experts_in(std::move(with_experts)); }

 private:
  at::Tensor compute_attention(const at::Tensor& x, const Sequence& sequence) const;
  at::Tensor compute_feed_forward(const at::Tensor& x, const at::Tensor& attended, const Sequence& sequence) const;
  at::Tensor feed_forward(const LayerInput& x, bool again, const Sequence& sequence) const;
  at::Tensor update(at::Tensor y, const std::optional<RmsNorm>& norm) const;

  std::optional<RmsNorm> attention_norm_;  // before attention
  Attention attention_;
  std::optional<RmsNorm> attended_norm_;      // after it
  std::optional<RmsNorm> feed_forward_norm_;  // before the feed-forward layer
  std::optional<FeedForward> feed_forward_;   // this, or
  std::optional<MixtureOfExperts> mixture_;
  std::optional<RmsNorm> fed_norm_;  // after it
  double residual_multiplier_;
  Recompute recompute_;
  at::ScalarType dtype_;  // of what sublayers take; x may be wider
  std::vector<Parameter*> of_attention_, of_feed_forward_;
};

}  // namespace meshtrain
