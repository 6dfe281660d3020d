#pragma once

#include <cstdint>
#include <vector>

#include "mesh/box.h"

namespace meshtrain::testing {

/// Returns the ranges of `num_layers` layers of which each but the first begins with a layer of `cuts`.
inline std::vector<Range> stages_from(const std::vector<int64_t>& cuts, int64_t num_layers) {
  std::vector<Range> stages;
  int64_t first = 0;
  for (const int64_t cut : cuts) {
    stages.push_back({first, cut - first});
    first = cut;
  }
  stages.push_back({first, num_layers - first});
  return stages;
}

}  // namespace meshtrain::testing
