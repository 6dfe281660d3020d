#include "runtime/model/transformer.h"

#include "runtime/data/samples.h"
#include "tensor_parallel/linear_cross_entropy.h"

namespace meshtrain {

Transformer::Transformer(const ModelShape& shape, const Parallelism& parallelism, const at::TensorOptions& options,
                         const Recomputation& recomputation)
    : parallelism_(parallelism),
      embedding_(parallelism.tensor, "model.embed_tokens", shape.vocab_size, shape.hidden_size,
                 {Initializer::Kind::Normal, shape.initializer_range}, options),
      norm_("model.norm.weight", shape.hidden_size, shape.rms_norm_eps, parallelism.stream_partial_over(), options) {
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>("model.layers." + std::to_string(layer), shape, parallelism, options,
                                              recomputation.of(layer)));
  }
  if (!shape.tie_word_embeddings) {
    head_ = sharded_parameter("lm_head.weight", {shape.vocab_size, shape.hidden_size}, 0, parallelism.tensor.group,
                              {Initializer::Kind::Normal, shape.initializer_range}, options);
  }
}

at::Tensor Transformer::loss(const at::Tensor& ids, const at::Tensor& labels, const Sequence& sequence,
                             Fsdp& units) const {
  at::Tensor x = units.run(0, [&] { return embedding_.forward(ids); });
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = units.run(1 + layer, [&] { return blocks_[layer]->forward(x, sequence); });
  }
  const size_t head_unit = head_ ? 1 + blocks_.size() : 0;
  return units.run(head_unit, [&] {
    return linear_cross_entropy(norm_.forward(x), head(), labels, kIgnoredLabel, parallelism_.tensor);
  });
}

std::vector<UnitSpec> Transformer::units() {
  std::vector<UnitSpec> units = {{"embedding", embedding_.parameters()}};
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    units.push_back({"block " + std::to_string(layer), blocks_[layer]->parameters()});
  }
  if (head_) {
    units.push_back({"head", {norm_.weight(), &*head_}});
  } else {
    units.front().name = "embedding and head";
    units.front().whole_step = true;
    units.front().parameters.push_back(norm_.weight());
  }
  return units;
}

std::vector<Parameter*> Transformer::parameters() {
  std::vector<Parameter*> all;
  for (const UnitSpec& unit : units()) all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

}  // namespace meshtrain
