#pragma once

#include <cstdint>
#include <string>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns the size that parallel.mesh gives `axis`: 1 when it does not name the axis, MeshLayout::kAuto for "auto".
inline int64_t asked_size(const Recipe& recipe, const std::string& axis) {
  const auto found = recipe.parallel.mesh.find(axis);
  return found == recipe.parallel.mesh.end() ? 1 : found->second;
}

/// Returns asked_size(), with 1 for "auto", as ranks_of() counts it.
inline int64_t known_size(const Recipe& recipe, const std::string& axis) {
  const int64_t asked = asked_size(recipe, axis);
  return asked == MeshLayout::kAuto ? 1 : asked;
}

}  // namespace meshtrain
