#include "runtime/model/block.h"

namespace meshtrain {

Block::Block(const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
             const at::TensorOptions& options)
    : attention_norm_(name + ".input_layernorm.weight", shape.hidden_size, shape.rms_norm_eps,
                      parallelism.stream_partial_over(), options),
      attention_(name + ".self_attn", shape, parallelism, options),
      feed_forward_norm_(name + ".post_attention_layernorm.weight", shape.hidden_size, shape.rms_norm_eps,
                         parallelism.stream_partial_over(), options),
      feed_forward_(name + ".mlp", shape, parallelism, options) {}

std::vector<Parameter*> Block::parameters() {
  std::vector<Parameter*> all = {attention_norm_.weight()};
  for (Parameter* parameter : attention_.parameters()) all.push_back(parameter);
  all.push_back(feed_forward_norm_.weight());
  for (Parameter* parameter : feed_forward_.parameters()) all.push_back(parameter);
  return all;
}

}  // namespace meshtrain
