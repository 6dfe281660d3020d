#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "context_parallel/choice.h"
#include "fsdp/options.h"
#include "mesh/device_mesh.h"
#include "runtime/model/recompute.h"
#include "runtime/model/shape.h"
#include "runtime/trainer/sharded_model.h"

namespace meshtrain {

/// A model, and the choices that decide its layout on a mesh.
struct ModelPlan {
  ModelShape shape;
  at::TensorOptions options;       ///< dtype and device of activations, and of parameters in the layers
  bool sequence_parallel = false;  ///< cuts the residual stream over tp
  ContextAlgorithm context_algorithm = ContextAlgorithm::Ring;
  Recomputation recomputation = {};
  std::optional<at::ScalarType> residual_dtype = {};  ///< of the residual stream; none: that of activations
  std::vector<std::string> freeze = {};    ///< globs for the names of parameters that are not trained
  std::optional<int64_t> frozen_row = {};  ///< the token whose lookups give the embedding no gradient
  int64_t unit_layers = 1;                 ///< number of blocks in an FSDP unit
  FsdpOptions fsdp = {};
};

/// Writes the initial values of the part of a parameter that this rank holds. Not collective.
using WriteParameter = std::function<void(const Parameter&)>;

/// Constructs a model on `mesh`, which has the axes dp, tp and cp. Every rank must call it. It is collective at the
/// beginning, where ranks of a host set up shared memory (Fsdp), before an error on one rank alone is possible. Throws
/// InputError when tp does not divide the model's heads or features, and rethrows errors of `write`.
std::unique_ptr<ShardedModel> parallelize(const ModelPlan& plan, const DeviceMesh& mesh, const WriteParameter& write);

}  // namespace meshtrain
