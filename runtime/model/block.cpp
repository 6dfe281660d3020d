#include "runtime/model/block.h"

#include <algorithm>

namespace meshtrain {

Block::Block(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
             const at::TensorOptions& options, Recompute recompute)
    : attention_norm_(name + ".input_layernorm.weight", shape.hidden_size, shape.rms_norm_eps,
                      parallelism.tensor.stream_partial_over(), options),
      attention_(layer, name + ".self_attn", shape, parallelism, options),
      feed_forward_norm_(name + ".post_attention_layernorm.weight", shape.hidden_size, shape.rms_norm_eps,
                         parallelism.tensor.stream_partial_over(), options),
      feed_forward_(name + ".mlp", shape, parallelism, options),
      recompute_(recompute) {
  for (const Parameter* parameter : parameters()) all_.push_back(parameter);
}

at::Tensor Block::forward(const at::Tensor& x, const Sequence& sequence) const {
  if (recompute_ != Recompute::All) return compute(x, sequence);
  return recomputed(
      x, [this, sequence](const at::Tensor& again) { return compute(again, sequence); }, trainable());
}

at::Tensor Block::compute(const at::Tensor& x, const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  const RmsNorm::Sum stream = feed_forward_norm_.of_sum(attend(x, sequence), x, again);
  return stream.sum + feed_forward_.forward(stream.normed, again);
}

at::Tensor Block::attend(const at::Tensor& x, const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  return attention_.forward(again ? attention_norm_.recomputed(x) : LayerInput(attention_norm_.forward(x)), sequence);
}

bool Block::trainable() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Parameter* parameter) { return parameter->tensor.requires_grad(); });
}

std::vector<Parameter*> Block::parameters() {
  std::vector<Parameter*> all = {attention_norm_.weight()};
  for (Parameter* parameter : attention_.parameters()) all.push_back(parameter);
  all.push_back(feed_forward_norm_.weight());
  for (Parameter* parameter : feed_forward_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace meshtrain
