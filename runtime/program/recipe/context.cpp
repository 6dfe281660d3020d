#include "runtime/program/recipe/context.h"

#include <algorithm>
#include <optional>

namespace meshtrain {
namespace {

template <class T>
std::optional<T> requested(const std::string& word, std::initializer_list<T> known) {
  for (const T& value : known) {
    if (word == name(value)) return value;
  }
  return std::nullopt;  // auto
}

/// Returns the largest window of the layers; 0 when one of them has none.
int64_t window_of_all(const ModelShape& shape) {
  int64_t largest = 0;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    const int64_t window = window_of(shape, layer);
    if (window == 0) return 0;
    largest = std::max(largest, window);
  }
  return largest;
}

}  // namespace

ContextShape context_shape(const Recipe& recipe, const MeshLayout& layout) {
  const int64_t tp = layout.size(kTensorAxis);
  return {recipe.train.sequence_length, recipe.model.shape.num_attention_heads / tp,
          recipe.model.shape.num_key_value_heads / tp, layout.size(kContextAxis), window_of_all(recipe.model.shape)};
}

ContextChoice context_choice(const Recipe& recipe, const MeshLayout& layout) {
  using Algorithm = ContextAlgorithm;
  using Kind = SequenceLayout::Kind;
  const ContextRecipe& context = recipe.parallel.context;
  return choose_context(context_shape(recipe, layout),
                        requested(context.algorithm, {Algorithm::Ring, Algorithm::AllGather, Algorithm::Ulysses}),
                        requested(context.layout, {Kind::Contiguous, Kind::ZigZag}));
}

std::string describe(const ContextChoice& choice) {
  return std::string(name(choice.algorithm)) + ", " + name(choice.layout) + ": " + choice.reason;
}

}  // namespace meshtrain
