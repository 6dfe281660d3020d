#pragma once

#include <string>
#include <vector>

#include "mesh/layout.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns the schedule and the stages of a recipe on a mesh; no stages where pp is 1. Without parallel.pipeline.layers
/// the blocks are divided by the operations of a forward and a backward, the head's included. Throws InputError for
/// more stages than blocks, for layers that do not add up, and for a schedule that cannot run so many stages or
/// micro-batches; without pp too, for keys that no pipeline can have.
PipelineChoice pipeline_choice(const Recipe& recipe, const MeshLayout& layout);

/// Returns the operations of each stage for a token, those of the embedding and the head included.
std::vector<double> stage_flops(const Recipe& recipe, const std::vector<int64_t>& blocks);

/// Returns true when each micro-batch reduces its gradients in its backward; else a step does so once.
bool reduces_each_micro_batch(const Decisions& decisions);

/// Throws InputError for keys that cannot be used with a pipeline, or not with its schedule.
void check_pipeline(const Recipe& recipe, const Decisions& decisions);

/// Returns "1f1b", "interleaved", "zb_h1".
std::string name(ScheduleKind kind);

/// Returns "1f1b over 4 stages of 7, 8, 8 and 7 layers".
std::string describe(const PipelineChoice& choice);

}  // namespace meshtrain
