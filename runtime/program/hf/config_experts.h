#pragma once

#include <nlohmann/json.hpp>

#include "runtime/program/hf/config_reader.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Reads the experts of a family that has some, into `shape`, whose sizes are read already. Throws InputError, also
/// for a value that would change the numbers in a way that is not available.
void read_experts(ConfigReader& config, ModelShape& shape);

/// Adds the keys that read_experts() reads. Throws InputError for a shape that the family's config.json cannot express.
void write_experts(nlohmann::ordered_json& config, const ModelShape& shape);

}  // namespace meshtrain
