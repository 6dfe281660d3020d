#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/program/verify/trace.h"

namespace meshtrain {

/// A comparison of the gradients on the ranks along one axis; sums over the axis must have made them equal. It covers
/// the parameters that all these ranks hold and that the axis does not cut: along tp, those that each rank holds
/// completely. Where the ranks of an axis keep shards, there is nothing to compare.
struct Replicas {
  std::string axis;
  int64_t num_compared = 0;   ///< 0: the ranks keep different parts
  int64_t num_different = 0;  ///< parameters that differ by more than the tolerance
  std::string worst;          ///< the parameter with the largest difference; empty when none differs
};

/// Compares the replicas along each axis of `mesh` that has more than one rank. Returns the same on every rank.
/// `tolerance`: bound of max|a-b| / max|b|. Every rank of `mesh` must call it.
std::vector<Replicas> compare_replicas(const Trace& trace, const DeviceMesh& mesh, double tolerance);

}  // namespace meshtrain
