#pragma once

#include "runtime/model/attention.h"
#include "runtime/model/feed_forward.h"

namespace meshtrain {

/// One layer of the transformer.
class Block {
 public:
  Block(const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
        const at::TensorOptions& options);

  /// x [T, M] (its tp part under sequence parallel) -> the same shape.
  at::Tensor forward(at::Tensor x, const Sequence& sequence) const {
    x = x + attention_.forward(attention_norm_.forward(x), sequence);
    x = x + feed_forward_.forward(feed_forward_norm_.forward(x));
    return x;
  }

  std::vector<Parameter*> parameters();

 private:
  RmsNorm attention_norm_;
  Attention attention_;
  RmsNorm feed_forward_norm_;
  FeedForward feed_forward_;
};

}  // namespace meshtrain
