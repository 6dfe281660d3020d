#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/program/yaml/value.h"

namespace meshtrain {

/// The values of a YAML document by their path, in the order of the text: {"train.steps", "60"}.
using FlatKeys = std::vector<std::pair<std::string, std::string>>;

/// Returns the values of `document`. Lists are one value, "[dp, cp]", but for the one at the path `opened`: each of its
/// items has keys of its own, "data.mixture[0].tokens".
FlatKeys flat_keys(const YamlValue& document, std::string_view opened = {});

/// Returns a value on one line: "none", "20", "[0.9, 0.95]", "{to: disk}".
std::string flat_text(const YamlValue& value);

}  // namespace meshtrain
