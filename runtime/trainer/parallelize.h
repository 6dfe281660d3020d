#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "context_parallel/choice.h"
#include "fsdp/options.h"
#include "mesh/device_mesh.h"
#include "runtime/model/recompute.h"
#include "runtime/model/shape.h"
#include "runtime/trainer/sharded_model.h"

namespace meshtrain {

/// A model, and the choices that decide how it lies on a mesh.
struct ModelPlan {
  ModelShape shape;
  at::TensorOptions options;       ///< of activations, and of parameters as layers see them
  bool sequence_parallel = false;  ///< cuts the residual stream over tp
  ContextAlgorithm context_algorithm = ContextAlgorithm::Ring;
  Recomputation recomputation = {};
  std::vector<std::string> freeze = {};  ///< patterns of the names of parameters that are not trained
  int64_t unit_layers = 1;               ///< blocks of an FSDP unit
  FsdpOptions fsdp = {};
};

/// Writes the first values of a parameter: those of its part that lies on this rank. No collective.
using WriteParameter = std::function<void(const Parameter&)>;

/// Puts a model on `mesh`, which has the axes dp, tp and cp. Every rank must call it. Collective at its beginning,
/// where ranks of a host come to share memory (Fsdp) and nothing can have failed on one rank alone. Throws InputError
/// when tp does not divide the model's heads or features, and what `write` throws.
std::unique_ptr<ShardedModel> parallelize(const ModelPlan& plan, const DeviceMesh& mesh, const WriteParameter& write);

}  // namespace meshtrain
