#pragma once

#include <string>
#include <vector>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Returns the names of the parameters of a model of this shape, in the order of its layers.
std::vector<std::string> parameter_names(const ModelShape& shape);

}  // namespace meshtrain
