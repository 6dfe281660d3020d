#pragma once

#include <filesystem>
#include <string>

#include "runtime/yaml/value.h"

namespace meshtrain {

/// The keys of `file` on top of those of the file that it `extends`, and so on. Always a map. `name` is not inherited.
/// Throws InputError with place for a file that cannot be read or is no map, and for files that extend each other.
YamlValue read_layers(const std::filesystem::path& file);

/// The layer that "train.steps=20" stands for, as given to --set. Throws InputError.
YamlValue override_layer(const std::string& text);

/// Returns the map that holds `value` at `path` ("train.steps") and nothing else, each of its maps at `place`.
YamlValue layer_of(const std::string& path, YamlValue value, const YamlPlace& place);

}  // namespace meshtrain
