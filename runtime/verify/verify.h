#pragma once

#include <functional>
#include <string>

#include "mesh/group.h"
#include "runtime/verify/plan.h"

namespace meshtrain {

/// Trains the plan's recipe on its mesh and on rank 0 alone, from the same seed and on the same data, and compares what
/// they computed (compare()). `print` gets the report piece by piece, on rank 0 alone. True, on every rank, when all is
/// equal. Throws, the same on every rank, InputError for data that does not fit or a fault that this mesh cannot have.
/// Every rank of `world` must call it.
bool verify(const VerifyPlan& plan, const VerifyOptions& options, const Group& world,
            const std::function<void(const std::string&)>& print);

}  // namespace meshtrain
