#include "runtime/training/model/transformer.h"

#include <cmath>

#include "mesh/device/aten.h"
#include "runtime/training/model/families.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/ignored_label.h"
#include "tensor_parallel/linear_cross_entropy.h"

namespace meshtrain {

namespace {

/// Returns the number that multiplies embeddings.
double embedding_scale(const ModelShape& shape, at::ScalarType dtype) {
  if (!family_of(shape).scales_embedding) return shape.embedding_multiplier;
  const double root = std::sqrt(static_cast<double>(shape.hidden_size));
  return at::scalar_tensor(root, at::kDouble).to(dtype).to(at::kDouble).item<double>();
}

/// Returns the two sublayers of `block`, whose layer is called `name`.
std::vector<Sublayer> sublayers_of(Block& block, const std::string& name) {
  return {{name + " attention", block.attention_parameters(),
           [&block](const at::Tensor& x, const at::Tensor&, const ForwardPass& pass) {
             return block.attend(x, pass.sequence);
           }},
          {name + " feed-forward", block.feed_forward_parameters(),
           [&block](const at::Tensor& x, const at::Tensor& attended, const ForwardPass& pass) {
             return block.feed(x, attended, pass.sequence);
           }}};
}

}  // namespace

Transformer::Transformer(const ModelShape& shape, const Parallelism& parallelism, const at::TensorOptions& options,
                         const Recomputation& recomputation, std::optional<at::ScalarType> residual_dtype)
    : hidden_size_(shape.hidden_size),
      residual_dtype_(residual_dtype.value_or(options.dtype().toScalarType())),
      tensor_parallel_(parallelism.tensor),
      embedding_(parallelism.tensor, "model.embed_tokens", shape.vocab_size, shape.hidden_size,
                 {Initializer::Kind::Normal, shape.initializer_range}, options,
                 adapter_of(shape.adapter, kEmbeddingLayer, kEmbeddingLayer, shape.vocab_size)),
      norm_("model.norm.weight", shape.hidden_size, shape.rms_norm_eps, family_of(shape).norm_weight,
            parallelism.tensor.stream_partial_over(), options),
      embedding_scale_(embedding_scale(shape, residual_dtype_)),
      logits_scaling_(shape.logits_scaling),
      softcap_(shape.final_logit_softcapping) {
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    blocks_.push_back(std::make_unique<Block>(layer, "model.layers." + std::to_string(layer), shape, parallelism,
                                              options, recomputation.of(layer)));
  }
  if (!shape.tie_word_embeddings) {
    head_ = sharded_parameter("lm_head.weight", {shape.vocab_size, shape.hidden_size}, 0, parallelism.tensor.group,
                              {Initializer::Kind::Normal, shape.initializer_range}, options);
    head_->of_tokens = true;
  }
  if (const auto adapter = adapter_of(shape.adapter, kHeadLayer, kHeadLayer, shape.hidden_size)) {
    head_adapter_.push_back(column_parallel_adapter(parallelism.tensor, kHeadLayer, shape.hidden_size, shape.vocab_size,
                                                    *adapter, options));
    head_adapter_.back().b.of_tokens = true;
  }
  (head_ ? *head_ : embedding_.weight()).written_by_layer = true;  // by linear_cross_entropy
}

at::Tensor Transformer::empty_residual(int64_t num_tokens, at::Device device) const {
  const int64_t ranks = tensor_parallel_.splits_rows() ? tensor_parallel_.group.size() : 1;
  return at::empty({num_tokens / ranks, hidden_size_}, at::TensorOptions(device).dtype(residual_dtype_));
}

at::Tensor Transformer::embed(const at::Tensor& ids) const {
  const at::Tensor rows = embedding_.forward(ids).to(residual_dtype_);
  return embedding_scale_ == 1 ? rows : rows * embedding_scale_;
}

at::Tensor Transformer::head_input(const at::Tensor& x) const {
  const at::Tensor normed = norm_.forward(x);
  return logits_scaling_ == 1 ? normed : normed / logits_scaling_;
}

at::Tensor Transformer::head(const at::Tensor& x, const ForwardPass& pass) const {
  if (pass.labels.defined()) {
    return linear_cross_entropy(head_input(x), head_weight(), pass.labels, kIgnoredLabel, tensor_parallel_,
                                std::nullopt, softcap_, adapter_terms(head_adapter_, {0}, pass.sequence.tokens),
                                pass.z_loss);
  }
  const at::Tensor last = head_input(x[-1]);
  pass.logits->emplace(last, head_weight(), tensor_parallel_, softcap_, adapter_terms(head_adapter_, {0}));
  return last;
}

std::vector<Layer> Transformer::layers() {
  std::vector<Layer> layers;
  layers.push_back({"embedding", embedding_.parameters(), nullptr,
                    [this](const at::Tensor& ids, const ForwardPass&) { return embed(ids); }});
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    Block& block = *blocks_[layer];
    const std::string name = "block " + std::to_string(layer);
    layers.push_back(
        {name, block.parameters(), nullptr,
         [&block](const at::Tensor& x, const ForwardPass& pass) { return block.forward(x, pass.sequence); },
         sublayers_of(block, name), block.cut_experts(),
         [&block](WithExperts with_experts) { block.use_experts_in(std::move(with_experts)); }});
  }
  layers.push_back({"head", {norm_.weight()}, nullptr, [this](const at::Tensor& x, const ForwardPass& pass) {
                      return head(x, pass);
                    }});
  if (head_) {
    layers.back().parameters.push_back(&*head_);
  } else {
    layers.back().borrowed = &embedding_.weight();
  }
  for (Adapter& adapter : head_adapter_) {
    layers.back().parameters.insert(layers.back().parameters.end(), {&adapter.a, &adapter.b});
  }
  return layers;
}

std::vector<Parameter*> Transformer::parameters() {
  const std::vector<Layer> all_layers = layers();
  const Layer& head = all_layers.back();
  std::vector<Parameter*> all = all_layers.front().parameters;
  const auto add = [&](const Layer& layer) {
    all.insert(all.end(), layer.parameters.begin(), layer.parameters.end());
    all.insert(all.end(), layer.experts.begin(), layer.experts.end());
  };
  if (head.borrowed != nullptr) add(head);
  for (size_t i = 1; i + 1 < all_layers.size(); ++i) add(all_layers[i]);
  if (head.borrowed == nullptr) add(head);
  return all;
}

namespace {

std::vector<TensorEntry> declared(const ModelShape& shape, at::ScalarType dtype, bool adapters) {
  Transformer model(shape, {}, at::TensorOptions(at::kMeta));
  std::vector<TensorEntry> tensors;
  for (const Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name;
    if (is_adapter(name) == adapters) tensors.push_back({name, dtype_in_folder(name, dtype), parameter->global_shape});
  }
  return tensors;
}

}  // namespace

std::vector<TensorEntry> declared_tensors(const ModelShape& shape, at::ScalarType dtype) {
  return declared(shape, dtype, /*adapters=*/false);
}

std::vector<TensorEntry> declared_adapters(const ModelShape& shape, at::ScalarType dtype) {
  return declared(shape, dtype, /*adapters=*/true);
}

}  // namespace meshtrain
