#pragma once

#include <filesystem>
#include <string>

#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {

/// Returns the text of `file`, at most a little more than a recipe may have, so that a stream without end is refused by
/// the parser. `asked_by`: the beginning of messages, "recipes/x.yaml: ". Throws InputError when it cannot be read.
std::string read_short_file(const std::filesystem::path& file, const std::string& asked_by);

/// Reads `file` and merges its keys over those of the file that it `extends`, and so on. Returns a map; `name` is not
/// inherited. Throws InputError with the location when a file cannot be read or is not a map, and when files extend
/// each other.
YamlValue read_layers(const std::filesystem::path& file);

/// Returns "data.mixture[0].weight" for "data.mixture.0.weight".
std::string with_indices(const std::string& path);

/// Returns the layer for a --set option, "train.steps=20" or "data.mixture.0.weight=3", of a recipe with `keys`: a path
/// may leave out its beginning where one key alone ends so, and a single value in the place of a map is for its
/// shorthand. Throws InputError.
YamlValue override_layer(const std::string& text, const KnownKeys& keys);

/// Returns the map that holds `value` at `path` ("train.steps") and nothing else, each of its maps at `location`.
YamlValue layer_of(const std::string& path, YamlValue value, const YamlLocation& location);

}  // namespace meshtrain
