#pragma once

#include <string>

#include "runtime/config/recipe.h"

namespace meshtrain {

/// "train.stochastic_rounding: true": what a recipe asks for that is done on CPUs alone; empty when nothing is.
std::string cpu_only(const Recipe& recipe);

}  // namespace meshtrain
