#pragma once

#include <string>

#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// What the mesh, the model and the batch demand of each other, and what is not available yet: throws InputError
/// naming keys, with their places where the recipe knows them, and numbers. `layout` has the axes dp, tp and cp. No
/// communication; every rank comes to the same end.
void validate(const Recipe& recipe, const MeshLayout& layout);

/// Returns the setting, if any, that only CPUs can do: "train.stochastic_rounding: true". Empty when there is none.
std::string cpu_only(const Recipe& recipe);

/// Throws InputError, naming the key, for a count of `shape` that `tp` tensor-parallel ranks cannot share out.
void check_tensor_parallel(const ModelShape& shape, int64_t tp);

}  // namespace meshtrain
