#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/program/hf/carried_over.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns the shape for the config.json of an export. When nobody set the number of positions, the result has that of
/// a sequence.
ModelShape shape_to_export(const Recipe& recipe);

/// Returns the token that ends a document in every file of `data`; nullopt when a file names none or files differ.
std::optional<int64_t> document_end(const DataOptions& data);

/// Returns the tokenizer of the recipe's tokens, as load_tokenizer() takes it: data.tokenizer, else the folder of
/// model.hf when it has one; empty when none is known.
std::string tokenizer_of(const Recipe& recipe);

/// Returns what an export of the model that `recipe` trains copies from its source.
CarriedOver carried_over(const Recipe& recipe);

}  // namespace meshtrain
