#pragma once

#include "runtime/model/attention.h"
#include "runtime/model/feed_forward.h"
#include "runtime/model/recompute.h"

namespace meshtrain {

/// One layer of the transformer.
class Block {
 public:
  /// `layer`: its index in the model.
  Block(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
        const at::TensorOptions& options, Recompute recompute);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Computes the layer: x [T, M] (its tp part under sequence parallel) -> the same shape. The backward issues the
  /// collectives of what it computes again, in the same order on every rank.
  at::Tensor forward(const at::Tensor& x, const Sequence& sequence) const;

  std::vector<Parameter*> parameters();

 private:
  at::Tensor compute(const at::Tensor& x, const Sequence& sequence) const;
  at::Tensor attend(const at::Tensor& x, const Sequence& sequence) const;
  bool trainable() const;

  RmsNorm attention_norm_;
  Attention attention_;
  RmsNorm feed_forward_norm_;
  FeedForward feed_forward_;
  Recompute recompute_;
  std::vector<const Parameter*> all_;
};

}  // namespace meshtrain
