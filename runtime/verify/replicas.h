#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/verify/trace.h"

namespace meshtrain {

/// Whether the ranks along one axis hold the same gradients, as after every sum over it they must. Along tp only those
/// of parameters that each of its ranks holds whole; none along an axis whose ranks keep shards.
struct Replicas {
  std::string axis;
  int64_t num_compared = 0;   ///< 0: its ranks keep different parts
  int64_t num_different = 0;  ///< by more than the tolerance
  std::string worst;          ///< the parameter; empty when none differs
};

/// One for each axis of `mesh` with more than one rank, the same on every rank. `tolerance`: of max|a-b| / max|b|.
/// Every rank of `mesh` must call it.
std::vector<Replicas> compare_replicas(const Trace& trace, const DeviceMesh& mesh, double tolerance);

}  // namespace meshtrain
