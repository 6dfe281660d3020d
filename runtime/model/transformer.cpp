#include "runtime/model/transformer.h"

#include <algorithm>

#include "runtime/model/ignored_label.h"
#include "tensor_parallel/linear_cross_entropy.h"

namespace meshtrain {

Transformer::Transformer(const ModelShape& shape, const Parallelism& parallelism, const at::TensorOptions& options,
                         const Recomputation& recomputation, int64_t unit_layers)
    : parallelism_(parallelism),
      unit_layers_(static_cast<size_t>(unit_layers)),
      embedding_(parallelism.tensor, "model.embed_tokens", shape.vocab_size, shape.hidden_size,
                 {Initializer::Kind::Normal, shape.initializer_range}, options),
      norm_("model.norm.weight", shape.hidden_size, shape.rms_norm_eps, parallelism.stream_partial_over(), options) {
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>(layer, "model.layers." + std::to_string(layer), shape, parallelism,
                                              options, recomputation.of(layer)));
  }
  if (!shape.tie_word_embeddings) {
    head_ = sharded_parameter("lm_head.weight", {shape.vocab_size, shape.hidden_size}, 0, parallelism.tensor.group,
                              {Initializer::Kind::Normal, shape.initializer_range}, options);
    head_->of_tokens = true;
  }
  (head_ ? *head_ : embedding_.weight()).written_by_layer = true;  // by linear_cross_entropy
}

at::Tensor Transformer::loss(const at::Tensor& ids, const at::Tensor& labels, const Sequence& sequence,
                             Fsdp& units) const {
  const at::Tensor x = stream(ids, sequence, units);
  return units.run(unit_of_head(), [&] {
    return linear_cross_entropy(norm_.forward(x), head(), labels, kIgnoredLabel, parallelism_.tensor);
  });
}

VocabularyLogits Transformer::next_logits(const at::Tensor& ids, const Sequence& sequence, Fsdp& units) const {
  const at::NoGradGuard no_grad;
  const at::Tensor x = stream(ids, sequence, units);
  std::optional<VocabularyLogits> logits;
  units.run(unit_of_head(), [&] {
    const at::Tensor last = norm_.forward(x[-1]);
    logits.emplace(last, head(), parallelism_.tensor);
    return last;
  });
  return std::move(*logits);
}

at::Tensor Transformer::stream(const at::Tensor& ids, const Sequence& sequence, Fsdp& units) const {
  at::Tensor x = units.run(0, [&] { return embedding_.forward(ids); });
  size_t unit = 1;
  for (size_t first = 0; first < blocks_.size(); first += unit_layers_) {
    x = units.run(unit++, [&] {
      at::Tensor y = x;
      for (size_t layer = first; layer < end_of_unit(first); ++layer) y = blocks_[layer]->forward(y, sequence);
      return y;
    });
  }
  return x;
}

size_t Transformer::unit_of_head() const {
  return head_ ? 1 + (blocks_.size() + unit_layers_ - 1) / unit_layers_ : 0;
}

size_t Transformer::end_of_unit(size_t first) const {
  return std::min(first + unit_layers_, blocks_.size());
}

std::vector<UnitSpec> Transformer::units() {
  std::vector<UnitSpec> units = {{"embedding", embedding_.parameters()}};
  for (size_t first = 0; first < blocks_.size(); first += unit_layers_) {
    const size_t last = end_of_unit(first) - 1;
    UnitSpec& unit = units.emplace_back();
    unit.name = first == last ? "block " + std::to_string(first)
                              : "blocks " + std::to_string(first) + " to " + std::to_string(last);
    for (size_t layer = first; layer <= last; ++layer) {
      for (Parameter* parameter : blocks_[layer]->parameters()) unit.parameters.push_back(parameter);
    }
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
