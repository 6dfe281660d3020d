#pragma once

#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "mesh/device_mesh.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the ranges of Transformer::layers() of the stages that this rank of `mesh` holds, in their order; empty
/// without a pipeline. `mesh`: the complete one. Not collective.
std::vector<Range> own_layers(const PipelineChoice& pipeline, const DeviceMesh& mesh);

/// Returns the first stage with a layer of `model` that has a trained parameter; 0 without a pipeline.
int first_trained_stage(Transformer& model, const PipelineChoice& pipeline);

}  // namespace meshtrain
