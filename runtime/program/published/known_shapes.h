#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Returns the shape of a public dense model by the name that tables of published runs give it: "llama3-8b",
/// "qwen3-32b"; "llama3-70b-12-layers" is the same with 12 layers. None for other names.
std::optional<ModelShape> known_shape(const std::string& name);

/// Returns the names of all models whose shape is known.
std::vector<std::string> known_shapes();

}  // namespace meshtrain
