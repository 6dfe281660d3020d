#include "runtime/recipe/context.h"

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

}  // namespace

ContextShape context_shape(const Recipe& recipe, const MeshLayout& layout) {
  const int64_t tp = layout.size(kTensorAxis);
  return {recipe.train.sequence_length, recipe.model.shape.num_attention_heads / tp,
          recipe.model.shape.num_key_value_heads / tp, layout.size(kContextAxis)};
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
