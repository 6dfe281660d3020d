#pragma once

#include <string>
#include <vector>

namespace meshtrain {

/// Returns a text that lists the names, cut when there are many. Names that differ only in the number of their layer
/// become one: "model.layers.[0-3].self_attn.q_proj.bias".
std::string describe_names(const std::vector<std::string>& names);

}  // namespace meshtrain
