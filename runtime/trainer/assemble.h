#pragma once

#include <cstdint>
#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/hf/carried_over.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/trainer/parallelize.h"

namespace meshtrain {

// From a recipe and its plan to what the floors below are built with.

/// Of the model that `recipe` trains, as an export's config.json says it: where nobody said for how many positions it
/// is, for those of a sequence.
ModelShape shape_to_export(const Recipe& recipe);

/// The token that ends a document in every file of `data`, where one is named and it is the same in all.
std::optional<int64_t> document_end(const DataRecipe& data);

/// What an export of the model that `recipe` trains takes over.
CarriedOver carried_over(const Recipe& recipe);

/// Which positions this rank holds.
SequenceLayout make_layout(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh);

/// The recipe's model as `plan` lays it on a mesh, on `device`, save for the choices of FSDP.
ModelPlan plan_model(const Recipe& recipe, const RunPlan& plan, at::Device device);

}  // namespace meshtrain
