#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// The path of every key that a recipe can have: "train.steps".
const std::vector<std::string>& recipe_keys();

/// `; did you mean "steps"?` for an unknown key in the map at `path`: the nearest key of that map, or else the whole
/// path of a key of that name, or near it, in another. Empty when there is none.
std::string key_suggestion(const std::string& path, const std::string& key);

}  // namespace meshtrain
