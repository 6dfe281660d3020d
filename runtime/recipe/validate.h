#pragma once

#include <string>

#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

struct RunPlan;

// The checks of resolve(). Each throws InputError naming the key, what it demands and the numbers.

/// Checks what values of the recipe demand of each other and of the sizes in `layout`.
void check_values(const Recipe& recipe, const MeshLayout& layout);

/// Checks that what was decided can be done.
void check_choices(const Recipe& recipe, const RunPlan& plan);

/// Throws InputError, naming the key, for a count of `shape` that `tp` tensor-parallel ranks cannot share out.
void check_tensor_parallel(const ModelShape& shape, int64_t tp);

}  // namespace meshtrain
