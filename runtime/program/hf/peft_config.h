#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Returns the adapters that a folder of PEFT has for a model of shape `base`: rank, alpha, use_rslora and dropout as
/// adapter_config.json says; targets, layers and train as the tensors in adapter_model.safetensors are named. `init`
/// has its default. Throws InputError when a file is missing or damaged, for a module that the model does not have, and
/// for what our adapters cannot be: another peft_type, DoRA, biases, several ranks, and the like.
AdapterShape read_peft_folder(const std::filesystem::path& folder, const ModelShape& base);

/// Returns a warning when the folder of PEFT `adapter` names another base than the folder `base`, by the last parts of
/// both paths; else an empty text.
std::string describe_other_base_name(const std::filesystem::path& adapter, const std::filesystem::path& base);

/// Returns the adapter_config.json of the adapters of `shape`. `trained`: the base's modules that are saved with them;
/// `base`: the folder of the base, or an empty text.
std::string write_peft_config(const ModelShape& shape, const std::vector<std::string>& trained,
                              const std::string& base);

}  // namespace meshtrain
