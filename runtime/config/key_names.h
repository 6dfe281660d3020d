#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// The path of every key that a recipe can have: "train.steps".
const std::vector<std::string>& recipe_keys();

// `path`: of a map, "train"; of an entry of a list "data.mixture[0]"; "" is the recipe.

/// Whether the map at `path` can have `key`, whatever else stands in it.
bool is_recipe_key(const std::string& path, const std::string& key);

/// `; did you mean "steps"?` for an unknown key in the map at `path`: the nearest key of that map, or else the whole
/// path of a key of that name, or near it, in another. Empty when there is none.
std::string key_suggestion(const std::string& path, const std::string& key);

}  // namespace meshtrain
