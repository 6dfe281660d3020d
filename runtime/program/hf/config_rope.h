#pragma once

#include <nlohmann/json.hpp>

#include "runtime/program/hf/config_reader.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Reads the rotary positions into `shape`, whose sizes are read already: theta, scaling and the rotary part of heads,
/// at the top of `config` or inside rope_scaling or rope_parameters, there also by type of layer. Throws InputError.
void read_rope(ConfigReader& config, ModelShape& shape);

/// Adds the keys that read_rope() reads, in the style of transformers 4, which 5 reads too.
void write_rope(nlohmann::ordered_json& config, const ModelShape& shape);

}  // namespace meshtrain
