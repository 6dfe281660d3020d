#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// Returns the candidate, in lower case, that `word` is most likely a misspelling of: a letter or two left out, added,
/// changed or swapped, in any case. Empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// Returns "a, b, c".
std::string joined(const std::vector<std::string>& words);

}  // namespace meshtrain
