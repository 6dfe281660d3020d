#pragma once

#include <cstdint>
#include <vector>

#include "mesh/box.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the ranges of Transformer::layers() of the stages that rank `rank` of a pipeline of `ranks` holds, in their
/// order; empty without a pipeline.
std::vector<Range> layers_of_rank(const PipelineChoice& pipeline, int64_t rank, int64_t ranks);

/// Returns the first stage with a layer of `model` that has a trained parameter; 0 without a pipeline.
int first_trained_stage(Transformer& model, const PipelineChoice& pipeline);

}  // namespace meshtrain
