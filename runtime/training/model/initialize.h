#pragma once

#include <cstdint>

#include "mesh/parameter.h"

namespace meshtrain {

/// Draws the local part of `parameter` on the host. An element's value depends on the seed, the parameter's name and
/// the element's index in the global tensor alone, so every mesh and every device creates the same model, and no rank
/// allocates more than its part. Values are drawn in double and rounded to the parameter's dtype. No collective.
///
/// Uses Philox4x32-10 (mesh/base/philox.h), and Box-Muller for normal values.
void initialize(const Parameter& parameter, uint64_t seed);

}  // namespace meshtrain
