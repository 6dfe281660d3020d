#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/model/shape.h"

namespace meshtrain {

/// Returns true when the glob `pattern` matches all of `name`, as a shell matches file names, except that `*` and `?`
/// also match dots and slashes. `*`: any characters or none, `?`: one, `[ab]`, `[0-9]`, `[!a]`: one in a set or outside
/// it; `\\` escapes the next character. Case matters (POSIX fnmatch).
bool matches(const std::string& pattern, const std::string& name);

/// Returns the index of the first of `patterns` that matches `name`; nullopt when none matches.
std::optional<size_t> first_match(const std::vector<std::string>& patterns, const std::string& name);

/// Returns the names of the parameters of a model of this shape, in the order of its layers.
std::vector<std::string> parameter_names(const ModelShape& shape);

}  // namespace meshtrain
