#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// Divides layers into `stages` stages of one or more consecutive layers. Minimises the cost of the most expensive
/// stage, then the sum of the squared costs. Of equal divisions it takes the one with more layers in earlier stages.
/// `layers`: the cost of each layer; `first`, `last`: the additional costs of the first and the last stage. Returns the
/// number of layers of each stage. Throws std::invalid_argument for fewer layers than stages.
std::vector<int64_t> balance_stages(const std::vector<double>& layers, int64_t stages, double first, double last);

}  // namespace meshtrain
