#include "runtime/training/model/block.h"

#include <algorithm>
#include <string>

#include "runtime/training/model/families.h"

namespace meshtrain {

namespace {

/// The names of a block's norms, in transformers; empty: there is none.
struct NormNames {
  std::string attention, attended, feed_forward, fed;
};

NormNames norm_names(NormPlacement placement) {
  switch (placement) {
    case NormPlacement::Before:
      return {"input_layernorm", "", "post_attention_layernorm", ""};
    case NormPlacement::After:
      return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
    case NormPlacement::Both:
      break;
  }
  return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
}

}  // namespace

Block::Block(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
             const at::TensorOptions& options, Recompute recompute)
    : attention_(layer, name + ".self_attn", shape, parallelism, options),
      feed_forward_(name + ".mlp", shape, parallelism, options),
      residual_multiplier_(shape.residual_multiplier),
      recompute_(recompute),
      dtype_(options.dtype().toScalarType()) {
  const Family& family = family_of(shape);
  const NormNames names = norm_names(family.norm_placement);
  const auto add = [&](std::optional<RmsNorm>& norm, const std::string& norm_name) {
    if (norm_name.empty()) return;
    norm.emplace(name + "." + norm_name + ".weight", shape.hidden_size, shape.rms_norm_eps, family.norm_weight,
                 parallelism.tensor.stream_partial_over(), options);
  };
  add(attention_norm_, names.attention);
  add(attended_norm_, names.attended);
  add(feed_forward_norm_, names.feed_forward);
  add(fed_norm_, names.fed);
  for (const Parameter* parameter : parameters()) all_.push_back(parameter);
}

at::Tensor Block::forward(const at::Tensor& x, const Sequence& sequence) const {
  if (recompute_ != Recompute::All) return compute(x, sequence);
  return recomputed(
      x, [this, sequence](const at::Tensor& again) { return compute(again, sequence); }, trainable());
}

at::Tensor Block::compute(const at::Tensor& x, const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  const at::Tensor attended = attend(x, sequence);
  if (!feed_forward_norm_) {
    const at::Tensor stream = attended + x;
    return stream + feed(stream.to(dtype_), again);
  }
  const RmsNorm::Sum stream = feed_forward_norm_->of_sum(attended, x, again);
  return stream.sum + feed(stream.normed, again);
}

at::Tensor Block::attend(const at::Tensor& x, const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  const auto input = [&]() -> LayerInput {
    if (!attention_norm_) return x.to(dtype_);
    return again ? attention_norm_->recomputed(x) : LayerInput(attention_norm_->forward(x));
  };
  return update(attention_.forward(input(), sequence), attended_norm_);
}

at::Tensor Block::feed(const LayerInput& x, bool again) const {
  return update(feed_forward_.forward(x, again), fed_norm_);
}

at::Tensor Block::update(at::Tensor y, const std::optional<RmsNorm>& norm) const {
  if (norm) y = norm->forward(y);
  return residual_multiplier_ == 1 ? y : y * residual_multiplier_;
}

bool Block::trainable() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Parameter* parameter) { return parameter->tensor.requires_grad(); });
}

std::vector<Parameter*> Block::parameters() {
  std::vector<Parameter*> all;
  const auto add = [&](std::optional<RmsNorm>& norm) {
    if (norm) all.push_back(norm->weight());
  };
  add(attention_norm_);
  for (Parameter* parameter : attention_.parameters()) all.push_back(parameter);
  add(attended_norm_);
  add(feed_forward_norm_);
  for (Parameter* parameter : feed_forward_.parameters()) all.push_back(parameter);
  add(fed_norm_);
  return all;
}

}  // namespace meshtrain
