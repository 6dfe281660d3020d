#pragma once

#include "context_parallel/choice.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns the shape of the model's attention on one rank of `layout`, which has the axes tp and cp.
ContextShape context_shape(const Recipe& recipe, const MeshLayout& layout);

/// Returns how attention is cut over cp: parallel.context, with `auto` decided by the shape.
ContextChoice context_choice(const Recipe& recipe, const MeshLayout& layout);

/// Describes `choice` for logs: "ring, zigzag: 4096 tokens a rank are enough to hide the hops".
std::string describe(const ContextChoice& choice);

}  // namespace meshtrain
