#pragma once

#include <vector>

#include "runtime/program/yaml/known_keys.h"

namespace meshtrain {

/// Returns the words of torchtitan, Megatron-LM, accelerate, DeepSpeed and transformers that people type in the place
/// of keys of a recipe.
const std::vector<ForeignWord>& foreign_words();

}  // namespace meshtrain
