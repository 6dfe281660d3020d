#pragma once

#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

struct Decisions;

/// Returns true when a source of samples, to train or to evaluate on, holds several documents in a sample.
bool has_documents(const Recipe& recipe);

// The checks of resolve(). Each throws InputError with the key, its requirement and the numbers.

/// Checks values of the recipe against each other and against the sizes in `layout`.
void check_values(const Recipe& recipe, const MeshLayout& layout);

/// Checks that the decisions are possible.
void check_choices(const Recipe& recipe, const Decisions& decisions);

/// Throws InputError with the key when `shape` has no experts to cut over `ep` ranks, or ep does not divide them.
void check_expert_parallel(const ModelShape& shape, int64_t ep);

/// Throws InputError with the key when `tp` tensor-parallel ranks cannot share a count of `shape` evenly.
void check_tensor_parallel(const ModelShape& shape, int64_t tp);

}  // namespace meshtrain
