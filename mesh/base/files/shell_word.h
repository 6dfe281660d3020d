#pragma once

#include <string>

namespace meshtrain {

/// Returns `word` as a shell takes it: in quotes unless it consists of plain characters.
std::string shell_word(std::string word);

}  // namespace meshtrain
