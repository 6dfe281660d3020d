#include "runtime/training/model/attention.h"

#include "runtime/training/model/families.h"

namespace meshtrain {

Attention::Attention(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
                     const at::TensorOptions& options)
    : layer_(layer),
      num_heads_(parallelism.tensor.local_heads(shape.num_attention_heads)),
      num_kv_heads_(parallelism.tensor.local_heads(shape.num_key_value_heads)),
      head_dim_(shape.head_dim),
      parallelism_(parallelism),
      query_key_value_(parallelism.tensor, shape.hidden_size,
                       {{name + ".q_proj", shape.num_attention_heads * shape.head_dim,
                         adapter_of(shape.adapter, name + ".q_proj", name, shape.hidden_size)},
                        {name + ".k_proj", shape.num_key_value_heads * shape.head_dim,
                         adapter_of(shape.adapter, name + ".k_proj", name, shape.hidden_size)},
                        {name + ".v_proj", shape.num_key_value_heads * shape.head_dim,
                         adapter_of(shape.adapter, name + ".v_proj", name, shape.hidden_size)}},
                       shape.qkv_bias, {Initializer::Kind::Normal, shape.initializer_range}, options),
      output_(
          parallelism.tensor, name + ".o_proj", shape.num_attention_heads * shape.head_dim, shape.hidden_size,
          shape.output_bias, {Initializer::Kind::Normal, shape.initializer_range}, options,
          adapter_of(shape.adapter, name + ".o_proj", name + ".o_proj", shape.num_attention_heads * shape.head_dim)),
      is_rotary_(is_rotary(shape, layer)),
      is_locally_rotary_(is_locally_rotary(shape, layer)),
      rule_{attention_scale(shape), window_of(shape, layer), shape.attn_logit_softcapping} {
  const Family& family = family_of(shape);
  if (family.has_sinks) {
    sinks_ = sharded_parameter(name + ".sinks", {shape.num_attention_heads}, 0, parallelism.tensor.group,
                               {Initializer::Kind::Normal, shape.initializer_range}, options);
  }
  const QueryKeyNorm norms = query_key_norm(shape);
  if (norms == QueryKeyNorm::EachHead) {
    const std::string partial_over = parallelism.tensor.heads_partial_over();
    const auto norm = [&](const std::string& of) {
      return RmsNorm(name + of, head_dim_, shape.rms_norm_eps, family.norm_weight, partial_over, options);
    };
    query_norm_.emplace(norm(".q_norm.weight"));
    key_norm_.emplace(norm(".k_norm.weight"));
  } else if (norms == QueryKeyNorm::AllHeads) {
    all_queries_norm_.emplace(name + ".q_norm.weight", shape.num_attention_heads, head_dim_, shape.rms_norm_eps,
                              parallelism.tensor, options);
    all_keys_norm_.emplace(name + ".k_norm.weight", shape.num_key_value_heads, head_dim_, shape.rms_norm_eps,
                           parallelism.tensor, options);
  }
}

at::Tensor Attention::forward(const LayerInput& x, const Sequence& sequence) const {
  const auto [q, k, v] = project(x, sequence);
  const at::Tensor mixed = mix(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sequence);
  return output_.forward(mixed.transpose(1, 2).reshape({-1, num_heads_ * head_dim_}), sequence.tokens);
}

Attention::Projections Attention::project(const LayerInput& x, const Sequence& sequence) const {
  const int64_t s = sequence.layout.local_length(), heads = num_heads_ + 2 * num_kv_heads_;
  const at::Tensor qkv = query_key_value_.forward(x, sequence.tokens).view({-1, s, heads, head_dim_});
  const Rotary* rotary = rotary_of(sequence);
  const bool is_normed = query_norm_ || all_queries_norm_;
  if (!is_normed && rotary != nullptr) {
    auto [q, k, v] = split_rotated(qkv, *rotary, num_heads_, num_kv_heads_);
    return {q, k, v};
  }
  const std::vector<at::Tensor> parts = qkv.split_with_sizes({num_heads_, num_kv_heads_, num_kv_heads_}, 2);
  at::Tensor q = parts[0], k = parts[1];
  if (query_norm_) q = query_norm_->forward(q), k = key_norm_->forward(k);
  if (all_queries_norm_) q = all_queries_norm_->forward(q), k = all_keys_norm_->forward(k);
  if (rotary != nullptr) q = rotate(q, *rotary), k = rotate(k, *rotary);
  return {q, k, parts[2]};
}

const Rotary* Attention::rotary_of(const Sequence& sequence) const {
  if (!is_rotary_) return nullptr;
  return is_locally_rotary_ ? &sequence.local_rotary : &sequence.rotary;
}

at::Tensor Attention::mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Sequence& sequence) const {
  AttentionRule rule = rule_;
  if (sinks_) rule.sinks = sinks_->tensor;
  if (sequence.cache != nullptr) return sequence.cache->attend(layer_, q, k, v, rule);
  return attention(q, k, v, sequence.layout, parallelism_.context, parallelism_.context_algorithm, rule);
}

std::vector<Parameter*> Attention::parameters() {
  std::vector<Parameter*> all = query_key_value_.parameters();
  if (query_norm_) all.insert(all.end(), {query_norm_->weight(), key_norm_->weight()});
  if (all_queries_norm_) all.insert(all.end(), {all_queries_norm_->weight(), all_keys_norm_->weight()});
  if (sinks_) all.push_back(&*sinks_);
  for (Parameter* parameter : output_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace meshtrain
