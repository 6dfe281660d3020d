#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mesh/device_mesh.h"
#include "runtime/training/transformer/sharded_model.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Writes the initial values of the part of a parameter that this rank holds. Not collective.
using WriteParameter = std::function<void(const Parameter&)>;

/// Constructs the model of `options` on `mesh`, which has the axes dp, tp and cp; `fsdp` has its groups. Every rank
/// must call it. `stages`: the ranges of Transformer::layers() that the ranks of `mesh` hold, rising; empty: one with
/// all layers. Returns a model for each. It is collective at the beginning, where ranks of a host set up shared memory
/// (Fsdp), before an error on one rank alone is possible. Throws InputError when tp does not divide the model's heads
/// or features, and rethrows errors of `write`.
std::vector<std::unique_ptr<ShardedModel>> parallelize(const TransformerOptions& options, const ModelFsdp& fsdp,
                                                       const DeviceMesh& mesh, at::Device device,
                                                       const WriteParameter& write,
                                                       const std::vector<Range>& stages = {});

}  // namespace meshtrain
