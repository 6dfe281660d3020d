#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "runtime/yaml/value.h"

namespace meshtrain {

class Conversion;

/// Reads `file`, a configuration of torchtitan (TOML), of accelerate (YAML) or of DeepSpeed (JSON), or a script or text
/// with the arguments of Megatron-LM, and returns the recipe that does the same, as YAML, with what could not be
/// converted and what is still to be given as comments. Throws InputError, with the location, when the file is none of
/// these.
std::string recipe_from(const std::filesystem::path& file);

/// Parses TOML. Throws InputError with the location.
YamlValue parse_toml(const std::string& text, const std::shared_ptr<const YamlSource>& source);

// Each converts the configuration of one tool.
void convert_torchtitan(Conversion& from);
void convert_accelerate(Conversion& from);
void convert_deepspeed(Conversion& from);
void convert_megatron(Conversion& from);

}  // namespace meshtrain
