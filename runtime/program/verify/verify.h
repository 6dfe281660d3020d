#pragma once

#include <functional>
#include <string>

#include "mesh/group.h"
#include "runtime/program/verify/setup.h"

namespace meshtrain {

/// Trains the setup's recipe on its mesh and on rank 0 alone, with the same seed and data, and compares the results
/// with compare(). Calls `print` with parts of the report, on rank 0 only. Returns true, on every rank, when all
/// results are equal. Throws InputError, the same on every rank, for data that does not fit or a fault that this mesh
/// cannot have. Every rank of `world` must call it.
bool verify(const VerifySetup& setup, const VerifyOptions& options, const Group& world,
            const std::function<void(const std::string&)>& print);

}  // namespace meshtrain
