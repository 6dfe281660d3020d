#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {

/// Returns a sidecar that says with which tokenizer, a name for load_tokenizer(), and by which command tokens are made.
/// `separator`: the id that is written beside the tokenizer's, if any.
TokenSidecar sidecar_of_origin(const Tokenizer& tokenizer, const std::string& name, std::optional<int64_t> separator,
                               const std::string& command);

/// A tokenizer beside the one that tokens were made with.
enum class TokenizerMatch { Same, OtherChecksum, OtherVocabulary };

/// Compares `tokenizer`, a name for load_tokenizer() or empty, with the one that `sidecar` names. Same where it is
/// empty or cannot be loaded; OtherChecksum where the number of ids alone is equal.
TokenizerMatch match_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer);

/// Returns true when `tokenizer`, a name likewise, exists with another checksum than that of the one in `sidecar`.
bool is_other_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer);

/// Returns the vocabulary of a tokenizer with `separator`, as sidecars count it; none when it cannot be loaded.
std::optional<int64_t> vocabulary_with(const std::string& tokenizer, std::optional<int64_t> separator);

}  // namespace meshtrain
