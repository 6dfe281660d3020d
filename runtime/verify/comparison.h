#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/verify/trace.h"

namespace meshtrain {

/// What the mesh is held against: the same training on one rank. In bf16 that is the one in fp32, and how far one rank
/// in bf16 gets from it says how far the mesh may.
struct Reference {
  Trace exact;
  std::optional<Trace> rounded;  ///< bf16 only
};

/// One number or tensor, held against one rank's.
struct Compared {
  enum class Kind { Loss, GradientNorm, Gradient, Weight };

  Kind kind;
  std::string name;   ///< the parameter, or "step 3"
  double value;       ///< of the mesh: the number; the largest or the length of the gradient; how far weights moved
  double reference;   ///< of one rank
  double difference;  ///< relative to the scale of the reference
  double bound;       ///< what it may be
  int64_t rank = 0;   ///< the rank that is furthest off

  bool equal() const { return difference <= bound; }  // a difference that is not a number is none
};

/// Holds the mesh's `trace` against the run on one rank (design rule 9). Each rank compares its own part or copy of
/// every parameter, which rank 0 sends one tensor at a time; the worst rank counts, so a copy that alone is wrong is
/// found. Returns losses, norms, gradients, weights, the same on every rank.
///
///   fp64, fp32   loss and norm relative, to 1e-10 and 1e-5; a gradient by max|a-b| / max|b|, to the same; weights by
///                |movement - movement_ref| / |movement_ref|, to 1e-10 and 1e-3
///   bf16         everything by its distance from one rank in fp32, which may be twice that of one rank in bf16 and
///                2^-8 of the reference more; tensors by their length
///
/// A reference that is nearly zero, a millionth of the model's, is measured on the model's scale.
/// `reference`: of rank 0, null on the others. Every rank of `mesh` must call it.
std::vector<Compared> compare(const Trace& trace, const Reference* reference, const DeviceMesh& mesh,
                              const std::string& precision);

/// What gradients of `precision` are compared to: the bound of a loss, a norm or a gradient on a sound machine.
double value_tolerance(const std::string& precision);

}  // namespace meshtrain
