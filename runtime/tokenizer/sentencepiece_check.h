#pragma once

#include <string>
#include <string_view>

namespace meshtrain {

/// Throws InputError unless the tables by which `model`, a SentencePiece model, replaces characters lead nowhere but
/// into themselves: the library follows them without looking. `file`: for messages.
void check_sentencepiece_tables(const std::string& file, std::string_view model);

}  // namespace meshtrain
