#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// Returns the names in a text for people, those that differ in the number of their layer as one,
/// "model.layers.[0-3].self_attn.q_proj.bias", and cut when there are many.
std::string describe_names(const std::vector<std::string>& names);

}  // namespace meshtrain
