#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/wording.h"
#include "runtime/data/mixture.h"
#include "runtime/data/token_file.h"
#include "runtime/data/token_sidecar.h"
#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/notice.h"

namespace meshtrain {

/// Compares the recipe's token files, those of `data` and of `evaluate`, with their sidecars (TokenSidecar). Throws
/// InputError, with the location of the key in the recipe, when a file's dtype is another, when it has another number
/// of tokens, when documents end with another token than `documents` says, and when model.vocab_size is too small for
/// its tokenizer; also for a file without a sidecar that certainly holds no token ids (kind_of_no_tokens()).
/// `tokenizer`, a name for load_tokenizer() or empty: that of the run; one with another vocabulary than the file's is
/// refused too. Files that do not exist, and others without a sidecar, are left to Dataset. Not collective.
void check_sidecars(const Recipe& recipe, const std::string& tokenizer = "");

/// A tokenizer beside the one that tokens were made with.
enum class TokenizerMatch { Same, OtherChecksum, OtherVocabulary };

/// Compares `tokenizer`, a name for load_tokenizer() or empty, with the one that `sidecar` names. Same where it is
/// empty or cannot be loaded; OtherChecksum where the number of ids alone is equal.
TokenizerMatch match_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer);

/// Throws InputError, with the location of data.tokenizer in the recipe, when it has ids beyond the model's vocabulary:
/// neither `generate` nor another program could use the model with it. That of bytes may, as a model of ASCII has the
/// lower ones. One that cannot be loaded is left alone. Not collective.
void check_tokenizer(const Recipe& recipe);

/// Gives every token file for which the recipe sets no layout that of its sidecar, and notes in Recipe::locations that
/// the sidecar said so. Call on a result of load_recipe(), whose locations tell what the recipe sets. Throws InputError
/// for a damaged sidecar.
void take_layouts(Recipe& recipe);

/// Returns lines about token files and their sidecars: which layouts take_layouts() took, and warnings of a layout that
/// the sidecar does not have and of a tokenizer with the same vocabulary but another checksum.
std::vector<Notice> sidecar_lines(const Recipe& recipe, const std::string& tokenizer);

/// Throws InputError, with the location of the key in the recipe, when no label of a whole source of `data` counts.
/// Reads samples until one has a label that does, the first in most files. Not collective.
void check_labels(const Recipe& recipe, const Mixture& data);

/// Returns the dtype that the tokens of a file look like, when that is not the one they are read as: "uint32" when
/// every second id of a file read as uint16 is 0, or small as the upper halves of larger ids are; "uint16" when nearly
/// all ids of a file read as uint32 are 65,536 or more; "int64", which is no dtype of a token file, when the ids of a
/// file read as uint16 or uint32 have the zeros of its upper halves; and each of the three when the bytes of a file
/// read as uint8 have the zeros, or small values, of upper bytes. Looks at some blocks of the file.
std::optional<std::string> other_dtype(const TokenFile& tokens);

/// Returns "int64" with what to do with such a file.
std::string advice_on_int64();

/// Returns a warning about a Megatron file without a sidecar that is read as a stream, although documents begin at all
/// records of S + 1 tokens: it was packed for sequences of S; an empty text for any other. `key`: as of
/// dtype_warning().
Wording layout_warning(const SourceRecipe& source, int64_t sequence_length, const std::string& key);

/// Returns a warning about a source without a sidecar whose tokens look like those of another dtype, or that may hold
/// no token ids; an empty text for any other. `key`: the recipe's key of the source, "data".
Wording dtype_warning(const SourceRecipe& source, const std::string& key);

}  // namespace meshtrain
