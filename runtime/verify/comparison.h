#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/verify/trace.h"

namespace meshtrain {

/// What the mesh is held against: the same training on one rank. In halves that is the one in fp32, and how far one
/// rank in the half gets from it says how far the mesh may.
struct Reference {
  Trace exact;
  std::optional<Trace> rounded;  ///< of a precision that is_rounded()
};

/// One number or tensor, held against one rank's.
struct Compared {
  /// The last two are the tensors of all parameters as one, in halves only.
  enum class Kind { Loss, GradientNorm, Gradient, Weight, AllGradients, AllWeights };

  Kind kind;
  std::string name;   ///< the parameter; "step 3" of several; or empty
  double value;       ///< of the mesh: the number; the largest or the length of the gradient; how far weights moved
  double reference;   ///< of one rank
  double difference;  ///< relative to the scale of the reference
  double bound;       ///< what it may be
  int64_t rank = 0;   ///< the rank that is furthest off

  bool equal() const { return difference <= bound; }  // a difference that is not a number is none
};

/// Holds the mesh's `trace` against the run on one rank (design rule 9). Each rank compares its own part or copy of
/// every parameter, which rank `root` sends one tensor at a time; the worst rank counts, so a copy that alone is wrong
/// is found. Returns losses, norms, gradients, weights, all gradients, all weights, the same on every rank.
///
///   fp64, fp32   loss and norm relative, to 1e-10 and 1e-5; a gradient by max|a-b| / max|b|, to the same; weights by
///                |movement - movement_ref| / |movement_ref|, to 1e-10 and 1e-3
///   halves       everything by its distance from one rank in fp32, tensors by their length, all relative. It may be
///                that of one rank in the same precision times a factor, and one rounding more: 2^-8, in fp16 2^-11.
///                For loss and norm the factor is 2; for the tensors of all parameters as one 1.5, and a norm may be
///                as far off as these. For a single tensor it is 4, of the largest of its own distance, that of all as
///                one and, for weights, that of its gradient: few elements are far off by luck, above all in Adam's
///                update, which makes a whole step of a gradient that is mostly rounding
///
/// A reference that is nearly zero, a millionth of the model's, is measured on the model's scale. What is not finite
/// differs from everything: a step that both left out proves nothing.
/// `reference`: on rank `root`, null on the others. Every rank of `mesh` must call it, with the same `root`.
std::vector<Compared> compare(const Trace& trace, const Reference* reference, const DeviceMesh& mesh,
                              const std::string& precision, int root = 0);

/// Whether runs of `precision` are held against fp32, as those of halves are.
bool is_rounded(const std::string& precision);

/// What gradients of `precision` are compared to: the bound of a loss, a norm or a gradient on a sound machine.
double value_tolerance(const std::string& precision);

/// AdamW's least eps in runs of `precision` that are to be compared: above the noise in gradients, of which it would
/// make whole steps. 0 in fp64.
double least_eps(const std::string& precision);

}  // namespace meshtrain
