#pragma once

#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "mesh/device_mesh.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the range of Transformer::layers() of each stage on this rank of `mesh`, in the order of the stages; empty
/// without a pipeline. `mesh`: the complete mesh. Not collective.
std::vector<Range> own_layers(const PipelineChoice& pipeline, const DeviceMesh& mesh);

/// Returns the first stage with a layer of `model` that has a trained parameter; 0 without a pipeline.
int first_trained_stage(Transformer& model, const PipelineChoice& pipeline);

}  // namespace meshtrain
