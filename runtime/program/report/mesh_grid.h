#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshtrain {

/// Returns a mesh as HTML: a grid of ranks, coloured by host, with a line for each axis that says how its groups lie on
/// the hosts. `axes`: names and sizes, outermost first: the first one goes down, the others across. `hosts`: the host
/// of each rank; none, or another number than there are ranks: unknown. More than 4,096 ranks are cut, which a line
/// says.
std::string draw_mesh_grid(const std::vector<std::pair<std::string, int64_t>>& axes,
                           const std::vector<std::string>& hosts);

}  // namespace meshtrain
