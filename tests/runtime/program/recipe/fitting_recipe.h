#pragma once

#include <cstdint>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain::testing {

/// Returns a recipe of a small model that meshes of up to eight ranks can train.
inline Recipe fitting_recipe(int64_t micro_batch = 2) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 64;
  shape.intermediate_size = 96;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = 8;
  shape.num_key_value_heads = 4;
  shape.head_dim = 8;
  shape.vocab_size = 256;
  recipe.train.sequence_length = 32;
  recipe.train.global_batch = 8;
  recipe.train.micro_batch = micro_batch;
  recipe.train.steps = 10;
  return recipe;
}

}  // namespace meshtrain::testing
