#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/program/yaml/value.h"

namespace meshtrain {

class Conversion;

/// A recipe made of the configuration of another trainer.
struct ConvertedRecipe {
  std::string text;      ///< YAML; comments list settings that were not converted and keys still to be given
  int64_t num_lost = 0;  ///< keys and defaults that change numbers and have no place in the recipe
};

/// Reads `file`, a configuration of accelerate, axolotl, NeMo Automodel or OLMo-core (YAML), DeepSpeed or PEFT (JSON),
/// a text with the arguments of Megatron-LM or torchtitan, or the words for LoRA in one of TRL (YAML), and returns the
/// recipe that does the same. Throws InputError, with the location, when the file is none of these.
ConvertedRecipe recipe_from(const std::filesystem::path& file);

/// Parses the arguments of a command line, in one line or many. Skips the words up to the first that ends with .py.
/// Returns a map: the value of "--lr" is a scalar, a list of several values, or "true" when there is none. Throws
/// InputError, with the location, for variables and operators of a shell.
YamlValue parse_arguments(const std::string& text, const std::shared_ptr<const YamlSource>& source);

// Each converts the configuration of one tool.
void convert_accelerate(Conversion& from);
void convert_deepspeed(Conversion& from);
void convert_megatron(Conversion& from);
void convert_axolotl(Conversion& from);
void convert_automodel(Conversion& from);
void convert_olmo_core(Conversion& from);
void convert_peft(Conversion& from);

/// Returns true when `arguments`, as parse_arguments() returned them, name a configuration of torchtitan that is known:
/// --config llama3_8b.
bool is_of_torchtitan(const YamlValue& arguments);
/// Returns the arguments as maps: "--training.steps 3" as {training: {steps: 3}}.
YamlValue nested_arguments(const YamlValue& arguments);
/// Converts nested_arguments() of torchtitan: the values of the configuration that they name, and their own.
void convert_torchtitan(Conversion& from);

/// Converts the words for LoRA in a configuration of axolotl, if there are any.
void take_axolotl_adapter(Conversion& from);
/// Converts the words for LoRA in a configuration of TRL, and lists all others as not converted.
void convert_trl_adapter(Conversion& from);
/// Converts the map peft_config, if there is one.
void take_peft_config(Conversion& from);

}  // namespace meshtrain
