#include "runtime/training/model/flops.h"

#include <c10/util/accumulate.h>

#include <numeric>

namespace meshtrain {
namespace {

/// Returns the mean number of keys that a query of `layer` sees.
double visible_keys(const ModelShape& shape, int64_t layer, int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length);
  const auto window = static_cast<double>(window_of(shape, layer));
  return window > 0 && window < length ? window - window * window / (2 * length) : length / 2;
}

}  // namespace

std::vector<double> layer_flops(Transformer& model, const ModelShape& shape, int64_t sequence_length) {
  std::vector<double> all;
  bool trains = false;  // a parameter so far: its gradient needs those of what comes after it
  const auto add_product = [&](const Parameter& parameter) {
    auto elements = static_cast<double>(c10::multiply_integers(parameter.global_shape));
    if (parameter.global_shape.size() > 2 || parameter.num_matrices == 0) {  // experts, of which a token has some
      elements *=
          static_cast<double>(shape.experts.num_experts_per_tok) / static_cast<double>(shape.experts.num_experts);
    }
    all.back() += elements * (2 + (trains ? 2 : 0) + (parameter.tensor.requires_grad() ? 2 : 0));
  };
  const std::vector<Layer> layers = model.layers();
  const auto query = static_cast<double>(shape.num_attention_heads * shape.head_dim);
  for (size_t i = 0; i < layers.size(); ++i) {
    all.push_back(0);
    const bool looks_up = i == 0;
    for (const auto& parameters : {layers[i].parameters, layers[i].experts}) {
      for (const Parameter* const parameter : parameters) {
        if (!looks_up || !parameter->of_tokens) add_product(*parameter);  // B of the embedding's adapter is multiplied
        trains = trains || parameter->tensor.requires_grad();
      }
    }
    if (layers[i].borrowed != nullptr) add_product(*layers[i].borrowed);
    const bool is_block = !looks_up && i + 1 < layers.size();
    if (!is_block) continue;
    // Scores and weighted values: two products of two operations, and twice as much backwards.
    all.back() += 4 * query * visible_keys(shape, static_cast<int64_t>(i) - 1, sequence_length) * (trains ? 3 : 1);
  }
  return all;
}

double flops_per_token(Transformer& model, const ModelShape& shape, int64_t sequence_length) {
  const std::vector<double> layers = layer_flops(model, shape, sequence_length);
  return std::accumulate(layers.begin(), layers.end(), 0.0);
}

}  // namespace meshtrain
