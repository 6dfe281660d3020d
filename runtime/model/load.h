#pragma once

#include <filesystem>
#include <vector>

#include "mesh/parameter.h"

namespace meshtrain {

/// Fills `parameters` from the safetensors of a Hugging Face folder, reading of each tensor only the part that lies
/// here, rounded to the parameter's dtype. Throws InputError when a tensor is missing or has another shape, or when a
/// file is damaged. No collective.
void load_pretrained(const std::vector<Parameter*>& parameters, const std::filesystem::path& folder);

}  // namespace meshtrain
