#pragma once

#include "context_parallel/choice.h"
#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Attention of the recipe's model as one rank of `layout`, with the axes tp and cp, sees it.
ContextShape context_shape(const Recipe& recipe, const MeshLayout& layout);

/// How the recipe's attention is cut over cp: what parallel.context asks for, `auto` settled by shape.
ContextChoice context_choice(const Recipe& recipe, const MeshLayout& layout);

/// "ring, zigzag: 4096 tokens a rank are enough to hide the hops": for logs.
std::string describe(const ContextChoice& choice);

}  // namespace meshtrain
