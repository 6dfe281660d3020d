#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/config/recipe.h"
#include "runtime/train/trainer.h"

namespace meshtrain::testing {

/// What a training run computes, as far as it is compared: per step loss and gradient norm, after the first step the
/// gradients (clipped), and the weights before the first and after the last step.
struct Trace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> first_weights;
  std::map<std::string, at::Tensor> last_weights;
};

/// Trains `recipe` on `mesh` and keeps this rank's parts of everything. Every rank of the mesh must call it.
Trace train(const Recipe& recipe, const DeviceMesh& mesh);

/// Trains `recipe` on `mesh` and says where the result differs from `reference`, the run on one rank, by more than
/// design rule 9 allows: a line with name, difference and bound for each; empty when they are equal. Every rank of the
/// mesh must call it.
std::string train_and_compare(const Recipe& recipe, const DeviceMesh& mesh, const Trace& reference);

/// `box` of `whole`: a view.
at::Tensor part(const at::Tensor& whole, const Box& box);

/// The mesh of one rank.
DeviceMesh one_rank_mesh();

}  // namespace meshtrain::testing
