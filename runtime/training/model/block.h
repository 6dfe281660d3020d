#pragma once

#include <optional>

#include "runtime/training/model/attention.h"
#include "runtime/training/model/feed_forward.h"
#include "runtime/training/model/recompute.h"

namespace meshtrain {

/// One layer of the transformer: x + m * attention(x), then that + m * feed_forward(that), with norms where the family
/// has them (NormPlacement) and m its residual multiplier.
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

  std::vector<Parameter*> parameters();

 private:
  at::Tensor compute(const at::Tensor& x, const Sequence& sequence) const;
  at::Tensor attend(const at::Tensor& x, const Sequence& sequence) const;
  at::Tensor feed(const LayerInput& x, bool again) const;
  at::Tensor update(at::Tensor y, const std::optional<RmsNorm>& norm) const;
  bool trainable() const;

  std::optional<RmsNorm> attention_norm_;  // before attention
  Attention attention_;
  std::optional<RmsNorm> attended_norm_;      // after it
  std::optional<RmsNorm> feed_forward_norm_;  // before the feed-forward layer
  FeedForward feed_forward_;
  std::optional<RmsNorm> fed_norm_;  // after it
  double residual_multiplier_;
  Recompute recompute_;
  at::ScalarType dtype_;  // of what sublayers take; x may be wider
  std::vector<const Parameter*> all_;
};

}  // namespace meshtrain
