#pragma once

#include <string>
#include <string_view>

namespace meshtrain {

/// Checks the tables by which `model`, a SentencePiece model, replaces characters: the library follows their offsets
/// without a check, so a damaged one would make it read outside of the table or without end. Throws InputError for such
/// a table. `file`: for messages.
void check_sentencepiece_tables(const std::string& file, std::string_view model);

}  // namespace meshtrain
