#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/program/verify/trace.h"

namespace meshtrain {

/// The result that the mesh is compared with: the same training on one rank.
struct Reference {
  Trace trace;                 ///< in fp64 for a mesh in fp64, otherwise in fp32
  std::optional<Trace> other;  ///< in the mesh's half precision, or in fp64 for a mesh in fp32; none for fp64
};

/// Returns the reference for a mesh in `precision`. `train`: runs the training on one rank in the precision that it is
/// given, first in the mesh's own. `has_fp64`: whether it can in fp64; no GPU has the kernels.
Reference make_reference(const std::string& precision, bool has_fp64,
                         const std::function<Trace(const std::string& precision)>& train);

/// A number or tensor, compared with one rank's.
struct Comparison {
  /// AllGradients, AllWeights: the tensors of all parameters together, for half precisions only.
  /// Choices: of experts, the number of tokens that chose others.
  enum class Kind { Loss, GradientNorm, Gradient, Weight, AllGradients, AllWeights, Choices };

  Kind kind;
  std::string name;   ///< the parameter; "step 3" when there are several steps; or empty
  double value;       ///< the mesh's number, the largest element or norm of the gradient, or the weights' movement
  double reference;   ///< the same on one rank
  double difference;  ///< relative to the scale of the reference
  double bound;       ///< bound of `difference`
  int64_t rank = 0;   ///< the rank with the largest difference

  bool equal() const { return difference <= bound; }  // false for a difference that is not a number
};

/// Compares the mesh's `trace` with the run on one rank (rule 9 of arithmetic). Each rank compares its own part or copy
/// of every parameter that it holds with the tensors that rank `root` sends one at a time. The worst rank counts, so a
/// single wrong copy is found. Returns, the same on every rank: losses, norms, gradients, weights, all gradients, all
/// weights.
///
///   fp64, fp32   loss and norm: relative difference, bounds 1e-10 and 1e-5; gradients: max|a-b| / max|b|, the same
///                bounds; weights: |movement - movement_ref| / |movement_ref|, bounds 1e-10 and 1e-3. In fp32 the
///                distance of one rank in fp64 from one rank in fp32 is added, times the factors of the halves: some
///                models amplify rounding
///   halves       everything: relative distance from one rank in fp32, tensors by their norm. The bound is the distance
///                of one rank in the same precision times a factor, plus one rounding: 2^-8, in fp16 2^-11. The factor
///                is 2 for loss, norm and the tensors of all parameters together; the norm may differ as much as these
///                tensors. For a single tensor the factor is 4, applied to the largest of its own distance, the
///                distance of all tensors together and, for weights, the distance of its gradient: few elements have a
///                large difference by chance, above all in Adam's update, which makes a full step of a gradient that is
///                mostly rounding
///
/// A reference below a millionth of the model's scale is compared on the model's scale. A number that is not finite
/// differs from everything: a step that both runs skipped proves nothing.
/// `reference`: on rank `root`, null on the others. Every rank of `mesh` must call it, with the same `root`.
std::vector<Comparison> compare(const Trace& trace, const Reference* reference, const DeviceMesh& mesh,
                                const std::string& precision, int root = 0);

/// Returns true when runs of `precision` are compared with fp32: for the half precisions.
bool is_rounded(const std::string& precision);

/// Returns the bound for a loss, a norm or a gradient of `precision`.
double value_tolerance(const std::string& precision);

/// Returns the smallest eps of AdamW for runs of `precision` that are compared. It is above the noise in gradients,
/// which a smaller eps would turn into full steps.
double least_eps(const std::string& precision);

}  // namespace meshtrain
