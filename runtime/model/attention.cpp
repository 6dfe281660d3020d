#include "runtime/model/attention.h"

#include <cmath>
#include <tuple>

namespace meshtrain {

Attention::Attention(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
                     const at::TensorOptions& options)
    : layer_(layer),
      num_heads_(parallelism.tensor.local_heads(shape.num_attention_heads)),
      num_kv_heads_(parallelism.tensor.local_heads(shape.num_key_value_heads)),
      head_dim_(shape.head_dim),
      parallelism_(parallelism),
      query_key_value_(parallelism.tensor, shape.hidden_size,
                       {{name + ".q_proj", shape.num_attention_heads * shape.head_dim},
                        {name + ".k_proj", shape.num_key_value_heads * shape.head_dim},
                        {name + ".v_proj", shape.num_key_value_heads * shape.head_dim}},
                       shape.qkv_bias, {Initializer::Kind::Normal, shape.initializer_range}, options),
      output_(parallelism.tensor, name + ".o_proj", shape.num_attention_heads * shape.head_dim, shape.hidden_size,
              shape.output_bias, {Initializer::Kind::Normal, shape.initializer_range}, options) {
  if (shape.qk_norm) {
    const std::string partial_over = parallelism.tensor.heads_partial_over();
    query_norm_.emplace(name + ".q_norm.weight", head_dim_, shape.rms_norm_eps, partial_over, options);
    key_norm_.emplace(name + ".k_norm.weight", head_dim_, shape.rms_norm_eps, partial_over, options);
  }
}

at::Tensor Attention::forward(const LayerInput& x, const Sequence& sequence) const {
  const int64_t s = sequence.layout.local_length(), heads = num_heads_ + 2 * num_kv_heads_;
  const at::Tensor qkv = query_key_value_.forward(x).view({-1, s, heads, head_dim_});

  at::Tensor q, k, v;
  if (query_norm_) {
    const std::vector<at::Tensor> parts = qkv.split_with_sizes({num_heads_, num_kv_heads_, num_kv_heads_}, 2);
    q = rotate(query_norm_->forward(parts[0]), sequence.rotary);
    k = rotate(key_norm_->forward(parts[1]), sequence.rotary);
    v = parts[2];
  } else {
    std::tie(q, k, v) = split_rotated(qkv, sequence.rotary, num_heads_, num_kv_heads_);
  }
  const at::Tensor mixed = mix(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sequence);
  return output_.forward(mixed.transpose(1, 2).reshape({-1, num_heads_ * head_dim_}));
}

at::Tensor Attention::mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Sequence& sequence) const {
  const AttentionRule rule{1 / std::sqrt(static_cast<double>(head_dim_))};
  if (sequence.cache != nullptr) return sequence.cache->attend(layer_, q, k, v, rule);
  return attention(q, k, v, sequence.layout, parallelism_.context, parallelism_.context_algorithm, rule);
}

std::vector<Parameter*> Attention::parameters() {
  std::vector<Parameter*> all = query_key_value_.parameters();
  if (query_norm_) all.insert(all.end(), {query_norm_->weight(), key_norm_->weight()});
  for (Parameter* parameter : output_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace meshtrain
