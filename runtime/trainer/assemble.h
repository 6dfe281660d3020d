#pragma once

#include <cstdint>
#include <optional>

#include "mesh/device_mesh.h"
#include "runtime/hf/carried_over.h"
#include "runtime/model/recompute.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/parallelize.h"

namespace meshtrain {

// From a recipe that validate() has passed to what the floors below are built with.

/// "fp32" -> at::kFloat, ...; of a mixed precision, in what parameters are used: "bf16_mixed" -> at::kBFloat16
at::ScalarType dtype_of(const std::string& precision);

/// Of the model that `recipe` trains, as an export's config.json says it: where nobody said for how many positions it
/// is, for those of a sequence.
ModelShape shape_to_export(const Recipe& recipe);

/// The token that ends a document in every file of `data`, where one is named and it is the same in all.
std::optional<int64_t> document_end(const DataRecipe& data);

/// What an export of the model that `recipe` trains takes over.
CarriedOver carried_over(const Recipe& recipe);

/// Which blocks compute their activations again in the backward.
Recomputation make_recomputation(const CheckpointingRecipe& recipe);

/// Which positions this rank holds.
SequenceLayout make_layout(const Recipe& recipe, const DeviceMesh& mesh);

/// True when the residual stream is cut over tp. `auto` is on when tp > 1 divides the tokens of a micro-batch.
bool is_sequence_parallel(const Recipe& recipe, const DeviceMesh& mesh);

/// The recipe's model and its choices for `mesh`, save for those of FSDP.
ModelPlan plan_model(const Recipe& recipe, const DeviceMesh& mesh, at::Device device);

}  // namespace meshtrain
