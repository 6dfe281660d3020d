#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/model/shape.h"

namespace meshtrain {

/// Whether the glob `pattern` matches the whole of `name`, as a shell does with names of files, but `*` and `?` match
/// dots and slashes too: `*` any characters or none, `?` one, `[ab]`, `[0-9]`, `[!a]` one of a set or not of it, `\\`
/// takes the next character for itself. Case counts. (POSIX fnmatch.)
bool matches(const std::string& pattern, const std::string& name);

/// Index of the first of `patterns` that matches `name`; none when none does.
std::optional<size_t> first_match(const std::vector<std::string>& patterns, const std::string& name);

/// Of the model of this shape, in the order of its layers.
std::vector<std::string> parameter_names(const ModelShape& shape);

}  // namespace meshtrain
