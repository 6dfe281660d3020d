#pragma once

#include <filesystem>
#include <string>

#include "runtime/yaml/value.h"

namespace meshtrain {

/// Reads `file` and merges its keys over those of the file that it `extends`, and so on. Returns a map; `name` is not
/// inherited. Throws InputError with the location when a file cannot be read or is not a map, and when files extend
/// each other.
YamlValue read_layers(const std::filesystem::path& file);

/// Returns the layer for a --set option, "train.steps=20". Throws InputError.
YamlValue override_layer(const std::string& text);

/// Returns the map that holds `value` at `path` ("train.steps") and nothing else, each of its maps at `location`.
YamlValue layer_of(const std::string& path, YamlValue value, const YamlLocation& location);

}  // namespace meshtrain
