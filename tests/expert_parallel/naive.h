#pragma once

#include <string>
#include <vector>

#include "expert_parallel/experts.h"
#include "mesh/device/aten.h"

namespace meshtrain::testing {

/// A layer of experts with random values, and where its tokens go.
struct ExpertCase {
  int64_t tokens = 24, width = 6, features = 10, num_experts = 5, top_k = 2;
  bool biases = false;
  bool clamped = false;  ///< the activation of gpt-oss, interleaved
  double limit = 1.5;    ///< its limit
  at::Tensor choices;    ///< [T, k]
};

/// Returns a case whose tokens choose distinct experts at random, but never the last one.
ExpertCase random_case(int64_t tokens = 24);

/// The inputs of a layer: x, slots' weights, then the experts' weights, leaves that require gradients.
struct ExpertInputs {
  ExpertInputs(const ExpertCase& shape, at::ScalarType dtype, at::ScalarType weights_dtype);

  /// Returns all leaves: x, weights, gate_up, down, and biases.
  std::vector<at::Tensor> leaves() const;

  at::Tensor x, weights;
  ExpertWeights experts;
};

GatedActivation activation_of(const ExpertCase& shape);

/// Computes the layer by mixture().
at::Tensor by_mixture(const ExpertCase& shape, const ExpertInputs& inputs, bool recompute = false);

/// Computes the layer by the definition: every expert for every token, in LibTorch's own functions.
at::Tensor by_definition(const ExpertCase& shape, const ExpertInputs& inputs);

}  // namespace meshtrain::testing
