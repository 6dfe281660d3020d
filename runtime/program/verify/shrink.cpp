#include "runtime/program/verify/shrink.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "mesh/base/files/glob.h"
#include "mesh/device/aten.h"
#include "runtime/program/recipe/patterns.h"

namespace meshtrain {
namespace {

constexpr int64_t kLayers = 2, kHeadDim = 8, kLeastHidden = 8, kVocabulary = 64, kExperts = 8;

/// Returns the smallest divisor of `n` above 1; 1 for 1.
int64_t smallest_factor(int64_t n) {
  for (int64_t factor = 2; factor * factor <= n; ++factor) {
    if (n % factor == 0) return factor;
  }
  return n;
}

/// Returns the KV heads of a tp rank: the number that Ulysses over cp distributes, times a factor when several heads
/// would become one. The factor divides the original number, so the greatest common divisor with cp does not change.
int64_t local_kv_heads(int64_t heads, int64_t cp) {
  const int64_t shared = std::gcd(heads, cp);
  return shared > 1 ? shared : smallest_factor(heads);
}

/// Returns `size` * `numerator` / `denominator`, rounded to the nearest integer.
int64_t scaled(int64_t size, int64_t numerator, int64_t denominator) {
  return std::llround(static_cast<double>(size) * static_cast<double>(numerator) / static_cast<double>(denominator));
}

/// Returns a vocabulary large enough that every tp rank with rows keeps some.
int64_t shrunk_vocabulary(int64_t size, int64_t tp) {
  const int64_t rest = size % tp;
  int64_t rows = (kVocabulary + tp - 1) / tp;
  if (rest > 0) rows = std::max(rows, tp - rest);
  return std::min(rows, size / tp) * tp + rest;
}

/// Returns numbers of layers that are not equal where those of `layers` are not: 1 in the smallest stages, 2 in others.
std::vector<int64_t> shrunk_stages(std::vector<int64_t> layers) {
  if (layers.empty()) return {};
  const int64_t least = std::ranges::min(layers);
  for (int64_t& count : layers) count = count > least ? 2 : 1;
  return layers;
}

/// Returns the layers that the stages of a small model need; 0 without a pipeline.
int64_t num_stage_layers(const PipelineRecipe& pipeline, const MeshLayout& layout) {
  if (layout.size(kPipelineAxis) == 1) return 0;
  if (pipeline.layers.empty()) return layout.size(kPipelineAxis) * pipeline.stages_per_rank;
  return std::accumulate(pipeline.layers.begin(), pipeline.layers.end(), int64_t{0});
}

/// Returns the layer of `from` that the second layer of a small model represents: the first that has experts if layer 0
/// has none, or the reverse; else the first whose attention differs from that of layer 0, or layer 1.
int64_t other_layer(const ModelShape& from) {
  const auto kind = [&](int64_t layer) {
    return std::tuple(window_of(from, layer), is_rotary(from, layer), is_locally_rotary(from, layer));
  };
  for (int64_t layer = 1; layer < from.num_hidden_layers; ++layer) {
    if (has_experts(from, layer) != has_experts(from, 0)) return layer;
  }
  for (int64_t layer = 1; layer < from.num_hidden_layers; ++layer) {
    if (kind(layer) != kind(0)) return layer;
  }
  return std::min<int64_t>(1, from.num_hidden_layers - 1);
}

/// Shortens a list with one entry for each layer, or none.
template <class T>
void shorten(std::vector<T>& list, int64_t num_layers, int64_t other) {
  if (static_cast<int64_t>(list.size()) <= num_layers) return;
  const std::vector<T> kinds = {list[0], list[static_cast<size_t>(other)]};
  list.clear();
  for (int64_t layer = 0; layer < num_layers; ++layer) list.push_back(kinds[static_cast<size_t>(layer % 2)]);
}

/// Folds the ids that `source` names into a smaller vocabulary, as fold_ids() does those of a batch.
void fold_ids(SourceOptions& source, int64_t vocab_size) {
  if (source.ignore_id) *source.ignore_id %= vocab_size;
  if (source.documents) *source.documents %= vocab_size;
}

/// Fits what depends on the features of a head to a smaller head_dim.
void shrink_rotary(ModelShape& to) {
  const int64_t features = std::max<int64_t>(2, rotary_features(to) / 2 * 2);
  if (to.partial_rotary_factor < 1) {
    to.partial_rotary_factor = static_cast<double>(features) / static_cast<double>(to.head_dim);
  }
  if (!to.rope_scaling) return;
  for (std::vector<double>* divisors : {&to.rope_scaling->short_factor, &to.rope_scaling->long_factor}) {
    if (divisors->empty()) continue;
    std::vector<double> some;
    const size_t wanted = static_cast<size_t>(rotary_features(to) / 2);
    for (size_t i = 0; i < wanted; ++i) some.push_back((*divisors)[i * divisors->size() / wanted]);
    *divisors = some;
  }
}

/// Fits the experts of `from` to the fewer layers and features of `to`. Each token still leaves out as many experts as
/// it has, where there are so many, and ep still divides them.
void shrink_experts(ModelShape& to, const ModelShape& from, int64_t tp, int64_t ep) {
  ExpertsShape& experts = to.experts;
  if (!experts) return;
  const int64_t least = std::max(kExperts, 2 * experts.num_experts_per_tok);
  experts.num_experts = std::min(experts.num_experts, (least + ep - 1) / ep * ep);
  if (!groups_problem(experts).empty()) experts.n_group = experts.topk_group = 1;
  const auto features = [&](int64_t size, int64_t parts) {
    const int64_t local = scaled(size, to.hidden_size, from.hidden_size * parts);
    return std::clamp(local, std::min<int64_t>(1, size), size / parts) * parts;
  };
  experts.moe_intermediate_size = features(experts.moe_intermediate_size, 1);
  experts.shared_expert_intermediate_size = features(experts.shared_expert_intermediate_size, tp);
  if (to.num_hidden_layers == from.num_hidden_layers) return;
  experts.mlp_only_layers.clear();
  for (int64_t layer = 0; layer < to.num_hidden_layers; ++layer) {
    if (!has_experts(from, layer % 2 == 1 ? other_layer(from) : 0)) experts.mlp_only_layers.push_back(layer);
  }
}

/// Returns the layer of a parameter: "model.layers.12.mlp.up_proj.weight" -> 12; -1 outside of layers.
int64_t layer_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  return name.starts_with(kPrefix) ? std::stoll(name.substr(kPrefix.size())) : -1;
}

std::string in_layer(const std::string& name, int64_t layer) {
  if (layer_of(name) < 0) return name;
  const size_t number = std::string_view("model.layers.").size();
  return name.substr(0, number) + std::to_string(layer) + name.substr(name.find('.', number));
}

/// The recipe's settings for single parameters, in a model `small` with fewer layers. Its first layer represents the
/// first layer. Its second represents the first layer with different settings, preferably one that is trained, or the
/// last layer. Layers beyond two represent these two in turns.
class Treatment {
 public:
  Treatment(const Recipe& recipe, ModelShape small) : recipe_(recipe) {
    small.adapter.layers.clear();
    names_ = parameter_names(small);
    num_small_ = small.num_hidden_layers;
    for (const GroupOptions& group : recipe.optimizer.groups) patterns_.push_back(group.pattern);
    const int64_t num_layers = recipe.model.shape.num_hidden_layers;
    second_ = num_layers - 1;
    bool found = false;
    for (int64_t layer = 1; layer < num_layers && !(found && trains(second_)); ++layer) {
      if (treatment(layer) == treatment(0) || (found && !trains(layer))) continue;
      second_ = layer;
      found = true;
      if (trains(0)) break;
    }
  }

  void carry_over(Recipe& small) const {
    small.train.freeze.clear();
    small.optimizer.groups.clear();
    AdapterShape& adapter = small.model.shape.adapter;
    adapter.train.clear();
    adapter.layers.clear();
    for (int64_t layer = 0; layer < num_small_; ++layer) {
      if (!adapter_.layers.empty() && has_adapters(represented_by(layer))) adapter.layers.push_back(layer);
    }
    for (const std::string& name : names_) {
      const int64_t layer = represented_by(layer_of(name));
      const std::string original = in_layer(name, layer);
      if (is_adapter(name) && !has_adapters(layer)) continue;
      if (first_match(recipe_.train.freeze, original)) small.train.freeze.push_back(name);
      if (first_match(adapter_.train, original)) adapter.train.push_back(name);
      const auto group = first_match(patterns_, original);
      if (!group) continue;
      small.optimizer.groups.push_back(recipe_.optimizer.groups[*group]);
      small.optimizer.groups.back().pattern = name;
    }
  }

 private:
  /// Returns, for each parameter of a layer, whether it is frozen, and its group.
  std::vector<std::pair<bool, std::optional<size_t>>> treatment(int64_t layer) const {
    std::vector<std::pair<bool, std::optional<size_t>>> all;
    for (const std::string& name : names_) {
      if (layer_of(name) != 0 || (is_adapter(name) && !has_adapters(layer))) continue;
      const std::string there = in_layer(name, layer);
      all.emplace_back(!is_trained(adapter_, recipe_.train.freeze, there), first_match(patterns_, there));
    }
    return all;
  }
  bool trains(int64_t layer) const {
    const auto all = treatment(layer);
    return std::any_of(all.begin(), all.end(), [](const auto& each) { return !each.first; });
  }

  /// Returns the recipe's layer that a layer of the small model represents.
  int64_t represented_by(int64_t layer) const { return layer % 2 == 1 ? second_ : 0; }

  bool has_adapters(int64_t layer) const {
    return adapter_ && (adapter_.layers.empty() || std::ranges::count(adapter_.layers, layer) > 0);
  }

  const Recipe& recipe_;
  const AdapterShape& adapter_ = recipe_.model.shape.adapter;
  std::vector<std::string> names_;  // names in the small model
  std::vector<std::string> patterns_;
  int64_t second_;
  int64_t num_small_;
};

}  // namespace

Recipe shrink(const Recipe& recipe, const MeshLayout& layout) {
  const int64_t tp = layout.size(kTensorAxis), cp = layout.size(kContextAxis);
  const ModelShape& from = recipe.model.shape;
  Recipe small = recipe;
  ModelShape& to = small.model.shape;
  if (layout.size(kPipelineAxis) == 1) small.parallel.pipeline = {};
  small.parallel.pipeline.layers = shrunk_stages(small.parallel.pipeline.layers);
  to.num_hidden_layers =
      std::min(from.num_hidden_layers, std::max(kLayers, num_stage_layers(small.parallel.pipeline, layout)));
  to.num_key_value_heads = tp * local_kv_heads(from.num_key_value_heads / tp, cp);
  to.num_attention_heads = to.num_key_value_heads * (from.num_attention_heads / from.num_key_value_heads);
  to.head_dim = std::min(from.head_dim, kHeadDim);
  shorten(to.layer_types, to.num_hidden_layers, other_layer(from));
  shorten(to.no_rope_layers, to.num_hidden_layers, other_layer(from));
  shrink_rotary(to);

  const int64_t hidden =
      scaled(from.hidden_size, to.num_attention_heads * to.head_dim, from.num_attention_heads * from.head_dim);
  to.hidden_size = std::clamp(hidden, std::min(from.hidden_size, kLeastHidden), from.hidden_size);
  const int64_t parts = has_dense_layers(from) ? tp : 1;
  const int64_t local_features = scaled(from.intermediate_size, to.hidden_size, from.hidden_size * parts);
  to.intermediate_size = std::clamp(local_features, int64_t{1}, from.intermediate_size / parts) * parts;
  shrink_experts(to, from, tp, layout.ep());
  to.initializer_range *= std::sqrt(static_cast<double>(from.hidden_size) / static_cast<double>(to.hidden_size));

  to.vocab_size = shrunk_vocabulary(from.vocab_size, tp);
  if (to.pad_token_id) *to.pad_token_id %= to.vocab_size;
  fold_ids(small.data, to.vocab_size);
  fold_ids(small.evaluate, to.vocab_size);
  for (SourceOptions& source : small.data.mixture) fold_ids(source, to.vocab_size);
  if (to.num_hidden_layers < from.num_hidden_layers) Treatment(recipe, to).carry_over(small);
  return small;
}

void fold_ids(StepBatch& batch, int64_t vocab_size) {
  for (MicroBatch& micro_batch : batch.micro_batches) {
    micro_batch.inputs = micro_batch.inputs.remainder(vocab_size);
    const at::Tensor ignored = micro_batch.labels.eq(kIgnoredLabel);
    micro_batch.labels = micro_batch.labels.remainder(vocab_size).masked_fill_(ignored, kIgnoredLabel);
  }
}

}  // namespace meshtrain
