#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// The candidate, in small letters, that `word` is most likely a misspelling of: a letter or two left out, added,
/// changed or swapped, whatever their case. Empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// "a, b, c".
std::string joined(const std::vector<std::string>& words);

}  // namespace meshtrain
