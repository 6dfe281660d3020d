#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// Divides layers into `stages` stages of neighbours, each of one layer at least: so that the most expensive stage
/// costs as little as possible, then so that costs are as even as possible (least squares); what is still open goes to
/// earlier stages. `layers`: the cost of each layer; `first`, `last`: what the first and the last stage cost besides.
/// Returns the number of layers of each stage. Throws std::invalid_argument for fewer layers than stages.
std::vector<int64_t> balance_stages(const std::vector<double>& layers, int64_t stages, double first, double last);

}  // namespace meshtrain
