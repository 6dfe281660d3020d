#pragma once

#include <memory>
#include <set>
#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// The purposes of the sums on groups that skip_sums() made, and the number of sums that it left out.
struct SumsSeen {
  std::set<std::string> purposes;
  int64_t num_skipped = 0;
};

/// Returns `world` with a fault, to test that a check notices it: sums (all_reduce, reduce_scatter) are left out when
/// their purpose is `skipped` or begins with it and a point ("dp" takes "dp.gradients"), on every rank alike and in
/// every group split from it. Each rank then keeps its own contribution. Groups of one rank have nothing to sum. `seen`
/// may be null.
Group skip_sums(const Group& world, const std::string& skipped, std::shared_ptr<SumsSeen> seen = nullptr);

}  // namespace meshtrain
