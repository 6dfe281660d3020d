#pragma once

#include <optional>
#include <string>

#include "mesh/base/wording.h"
#include "runtime/training/data/options.h"
#include "runtime/training/data/token_file.h"

namespace meshtrain {

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
Wording layout_warning(const SourceOptions& source, int64_t sequence_length, const std::string& key);

/// Returns a warning about a source without a sidecar whose tokens look like those of another dtype, or that may hold
/// no token ids; an empty text for any other. `key`: the recipe's key of the source, "data".
Wording dtype_warning(const SourceOptions& source, const std::string& key);

}  // namespace meshtrain
