#pragma once

#include <cstdint>
#include <string>

#include "mesh/layout.h"

namespace meshtrain {

/// A mesh in words: which rank has which coordinate, which ranks form the group of each axis, and which groups reach
/// over several hosts of `ranks_per_host` ranks (0: one host). Long lists are cut in the middle, their counts said.
std::string draw_mesh(const MeshLayout& layout, int64_t ranks_per_host);

}  // namespace meshtrain
