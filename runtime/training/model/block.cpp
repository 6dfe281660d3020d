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

/// Returns the weight of the norm before a sublayer, the sublayer's own parameters, and the weight of the norm after
/// it.
std::vector<Parameter*> with_norms(std::optional<RmsNorm>& before, const std::vector<Parameter*>& own,
                                   std::optional<RmsNorm>& after) {
  std::vector<Parameter*> all;
  if (before) all.push_back(before->weight());
  all.insert(all.end(), own.begin(), own.end());
  if (after) all.push_back(after->weight());
  return all;
}

bool any_trainable(const std::vector<Parameter*>& parameters) {
  return std::ranges::any_of(parameters, [](const Parameter* parameter) { return parameter->tensor.requires_grad(); });
}

}  // namespace

Block::Block(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
             const at::TensorOptions& options, Recompute recompute)
    : attention_(layer, name + ".self_attn", shape, parallelism, options),
      residual_multiplier_(shape.residual_multiplier),
      recompute_(recompute),
      dtype_(options.dtype().toScalarType()) {
  if (has_experts(shape, layer)) {
    mixture_.emplace(layer, name + ".mlp", shape, parallelism, options);
  } else {
    feed_forward_.emplace(name + ".mlp", shape, shape.intermediate_size, parallelism, options);
  }
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
  of_attention_ = attention_parameters();
  of_feed_forward_ = feed_forward_parameters();
  for (Parameter* parameter : cut_experts()) of_feed_forward_.push_back(parameter);
}

at::Tensor Block::forward(const at::Tensor& x, const Sequence& sequence) const {
  if (recompute_ != Recompute::All) return compute_feed_forward(x, compute_attention(x, sequence), sequence);
  const auto compute = [this, sequence](const std::vector<at::Tensor>& inputs) {
    return compute_feed_forward(inputs[0], compute_attention(inputs[0], sequence), sequence);
  };
  return recomputed({x}, compute, any_trainable(of_attention_) || any_trainable(of_feed_forward_));
}

at::Tensor Block::attend(const at::Tensor& x, const Sequence& sequence) const {
  if (recompute_ != Recompute::All) return compute_attention(x, sequence);
  const auto compute = [this, sequence](const std::vector<at::Tensor>& inputs) {
    return compute_attention(inputs[0], sequence);
  };
  return recomputed({x}, compute, any_trainable(of_attention_));
}

at::Tensor Block::feed(const at::Tensor& x, const at::Tensor& attended, const Sequence& sequence) const {
  if (recompute_ != Recompute::All) return compute_feed_forward(x, attended, sequence);
  const auto compute = [this, sequence](const std::vector<at::Tensor>& inputs) {
    return compute_feed_forward(inputs[0], inputs[1], sequence);
  };
  return recomputed({x, attended}, compute, any_trainable(of_feed_forward_));
}

at::Tensor Block::compute_feed_forward(const at::Tensor& x, const at::Tensor& attended,
                                       const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  if (!feed_forward_norm_) {
    const at::Tensor stream = attended + x;
    return stream + feed_forward(stream.to(dtype_), again, sequence);
  }
  const RmsNorm::Sum stream = feed_forward_norm_->of_sum(attended, x, again);
  return stream.sum + feed_forward(stream.normed, again, sequence);
}

at::Tensor Block::compute_attention(const at::Tensor& x, const Sequence& sequence) const {
  const bool again = recompute_ == Recompute::Elementwise;
  const auto input = [&]() -> LayerInput {
    if (!attention_norm_) return x.to(dtype_);
    return again ? attention_norm_->recomputed(x) : LayerInput(attention_norm_->forward(x));
  };
  return update(attention_.forward(input(), sequence), attended_norm_);
}

at::Tensor Block::feed_forward(const LayerInput& x, bool again, const Sequence& sequence) const {
  return update(mixture_ ? mixture_->forward(x, again, sequence) : feed_forward_->forward(x, again, sequence.tokens),
                fed_norm_);
}

at::Tensor Block::update(at::Tensor y, const std::optional<RmsNorm>& norm) const {
  if (norm) y = norm->forward(y);
  return residual_multiplier_ == 1 ? y : y * residual_multiplier_;
}

std::vector<Parameter*> Block::parameters() {
  std::vector<Parameter*> all = attention_parameters();
  for (Parameter* parameter : feed_forward_parameters()) all.push_back(parameter);
  return all;
}

std::vector<Parameter*> Block::attention_parameters() {
  return with_norms(attention_norm_, attention_.parameters(), attended_norm_);
}

std::vector<Parameter*> Block::feed_forward_parameters() {
  return with_norms(feed_forward_norm_, mixture_ ? mixture_->parameters() : feed_forward_->parameters(), fed_norm_);
}

std::vector<Parameter*> Block::cut_experts() {
  return mixture_ ? mixture_->cut_experts() : std::vector<Parameter*>();
}

}  // namespace meshtrain
