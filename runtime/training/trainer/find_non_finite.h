#pragma once

#include <string>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/parameter_index.h"

namespace meshtrain {

/// Returns the first parameter of `index` with a gradient that is not finite on any rank:
/// "model.layers.3.mlp.up_proj.weight"; empty when all are finite. Call it after gradients have been reduced. `groups`:
/// the parameters that this rank holds. Every rank of `world` must call it.
std::string find_non_finite(const ParameterIndex& index, const std::vector<ParameterGroup>& groups, const Group& world);

}  // namespace meshtrain
