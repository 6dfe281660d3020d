#pragma once

#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// Returns true when the glob `pattern` matches all of `name`, as a shell matches file names, except that `*` and `?`
/// also match dots and slashes. `*`: any characters or none, `?`: one, `[ab]`, `[0-9]`, `[!a]`: one in a set or outside
/// it; `\\` escapes the next character. Case matters (POSIX fnmatch). `separator`: a character that no
/// wildcard matches; '\0': none.
bool matches(std::string pattern, std::string name, char separator = '\0');

/// Returns the index of the first of `patterns` that matches `name`; nullopt when none matches.
std::optional<size_t> first_match(const std::vector<std::string>& patterns, const std::string& name);

}  // namespace meshtrain
