#pragma once

#include <vector>

#include "runtime/program/hf/config_reader.h"
#include "runtime/training/model/adapter_shape.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

/// Sets rank and alpha of `adapter`, which has r, lora_alpha and use_rslora of `config`, to those of single layers. A
/// module has r and lora_alpha, or the values in rank_pattern and alpha_pattern whose key, a regular expression,
/// matches the end of its name. A module of several layers has their rank, or a multiple: then several adapters.
/// `modules` have all of their layers. Throws InputError when layers have different ranks or scales, when a factor in
/// `file` has another rank, and for a regular expression of Python alone.
void take_peft_ranks(ConfigReader& config, const SafetensorsFile& file, const std::vector<PeftModule>& modules,
                     AdapterShape& adapter);

}  // namespace meshtrain
