#include "runtime/trainer/assemble.h"

#include <algorithm>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

ModelShape shape_to_export(const Recipe& recipe) {
  ModelShape shape = recipe.model.shape;
  if (shape.max_position_embeddings == 0) shape.max_position_embeddings = recipe.train.sequence_length;
  return shape;
}

std::optional<int64_t> document_end(const DataRecipe& data) {
  const std::vector<MixedSourceRecipe> sources = data.sources();
  const std::optional<int64_t> end = sources.front().documents;
  const bool same =
      std::all_of(sources.begin(), sources.end(), [&](const SourceRecipe& source) { return source.documents == end; });
  return same && end != kDocumentsOfIndex ? end : std::nullopt;
}

std::string tokenizer_of(const Recipe& recipe) {
  if (!recipe.data.tokenizer.empty()) return recipe.data.tokenizer.string();
  return tokenizer_file_in(recipe.model.hf).empty() ? "" : recipe.model.hf.string();
}

CarriedOver carried_over(const Recipe& recipe) {
  CarriedOver carried = carried_over(recipe.model.hf, recipe.model.shape);
  carried.document_end = document_end(recipe.data);
  return carried;
}

SequenceLayout make_layout(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh) {
  return SequenceLayout(plan.context.layout, recipe.train.sequence_length, static_cast<int>(mesh.size(kContextAxis)),
                        static_cast<int>(mesh.coordinate(kContextAxis)));
}

ModelPlan plan_model(const Recipe& recipe, const RunPlan& plan, at::Device device) {
  ModelPlan model;
  model.shape = recipe.model.shape;
  model.options = at::TensorOptions(device).dtype(plan.precision.compute);
  model.sequence_parallel = plan.sequence_parallel;
  model.context_algorithm = plan.context.algorithm;
  model.recomputation = plan.recomputation;
  model.residual_dtype = plan.precision.residual;
  model.freeze = recipe.train.freeze;
  if (recipe.model.freeze_padding_row) model.frozen_row = recipe.model.shape.pad_token_id;
  model.unit_layers = recipe.parallel.fsdp.unit_layers;
  return model;
}

}  // namespace meshtrain
