#pragma once

#include <nlohmann/json.hpp>

#include "runtime/program/hf/config_reader.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Reads what layers of a family choose besides their sizes, into `shape`, whose sizes are read already: biases,
/// sliding windows, layers without rotary positions, multipliers, soft caps. Throws InputError, also for a key that the
/// family does not have.
void read_layers(ConfigReader& config, ModelShape& shape);

/// Adds the keys that read_layers() reads. Throws InputError for a shape that the family's config.json cannot express.
void write_layers(nlohmann::ordered_json& config, const ModelShape& shape);

}  // namespace meshtrain
