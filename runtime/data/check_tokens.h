#pragma once

#include <optional>
#include <string>

#include "runtime/data/mixture.h"
#include "runtime/data/token_file.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Compares the recipe's token files, those of `data` and of `evaluate`, with their sidecars (TokenSidecar). Throws
/// InputError, with the location of the key in the recipe, when a file's dtype is another, when it has another number
/// of tokens, and when model.vocab_size is too small for its tokenizer. Files that do not exist or have no sidecar are
/// left to Dataset. Not collective.
void check_sidecars(const Recipe& recipe);

/// Throws InputError, with the location of the key in the recipe, when no label of a whole source of `data` counts.
/// Reads samples until one has a label that does, the first in most files. Not collective.
void check_labels(const Recipe& recipe, const Mixture& data);

/// Returns the dtype that the tokens of a file look like, when that is not the one they are read as: "uint32" when
/// every second id of a file read as uint16 is 0, or small as the upper halves of larger ids are; "uint16" when nearly
/// all ids of a file read as uint32 are 65,536 or more. Looks at some blocks of the file.
std::optional<std::string> other_dtype(const TokenFile& tokens);

/// Returns a warning about a source without a sidecar whose tokens look like those of another dtype; an empty text for
/// any other. `key`: the recipe's key of the source, "data".
std::string dtype_warning(const SourceRecipe& source, const std::string& key);

}  // namespace meshtrain
