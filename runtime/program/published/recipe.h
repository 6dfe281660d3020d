#pragma once

#include "runtime/program/published/software.h"
#include "runtime/program/published/table.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns the recipe that comes closest to a published run, with `micro_batch` samples at once and `micro_batches` of
/// them in a step: its model, mesh, sharding and precision. fp8 becomes bf16_mixed. What the program that ran does
/// otherwise is Software's. A documented recipe stays as it is, with its own batch. Throws InputError when the run is
/// none that could be trained: a head count that tp does not divide.
Recipe recipe_of(const PublishedRun& run, int64_t micro_batch, int64_t micro_batches, const Software& software);

/// Returns the ranks of a run on their axes, dp outermost, tp innermost.
MeshLayout layout_of(const PublishedRun& run, const Recipe& recipe);

}  // namespace meshtrain
