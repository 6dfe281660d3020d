#include "runtime/trainer/assemble.h"

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/recipe/context.h"

namespace meshtrain {

at::ScalarType dtype_of(const std::string& precision) {
  static const std::map<std::string, at::ScalarType> dtypes = {
      {"fp64", at::kDouble},   {"fp32", at::kFloat},          {"fp16", at::kHalf},
      {"bf16", at::kBFloat16}, {"bf16_mixed", at::kBFloat16}, {"fp16_mixed", at::kHalf}};
  return dtypes.at(precision);
}

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

CarriedOver carried_over(const Recipe& recipe) {
  CarriedOver carried = carried_over(recipe.model.hf, recipe.model.shape);
  carried.document_end = document_end(recipe.data);
  return carried;
}

Recomputation make_recomputation(const CheckpointingRecipe& recipe) {
  static const std::map<std::string, Recompute> modes = {
      {"none", Recompute::Nothing}, {"selective", Recompute::Elementwise}, {"full", Recompute::All}};
  return {modes.at(recipe.mode), recipe.every};
}

SequenceLayout make_layout(const Recipe& recipe, const DeviceMesh& mesh) {
  return SequenceLayout(context_choice(recipe, mesh.layout()).layout, recipe.train.sequence_length,
                        static_cast<int>(mesh.size("cp")), static_cast<int>(mesh.coordinate("cp")));
}

bool is_sequence_parallel(const Recipe& recipe, const DeviceMesh& mesh) {
  const int64_t tokens = recipe.train.micro_batch * make_layout(recipe, mesh).local_length(), tp = mesh.size("tp");
  const std::string& asked = recipe.parallel.sequence_parallel;
  return tp > 1 && (asked == "on" || (asked == "auto" && tokens % tp == 0));
}

ModelPlan plan_model(const Recipe& recipe, const DeviceMesh& mesh, at::Device device) {
  ModelPlan plan;
  plan.shape = recipe.model.shape;
  plan.options = at::TensorOptions(device).dtype(dtype_of(recipe.train.precision));
  plan.sequence_parallel = is_sequence_parallel(recipe, mesh);
  plan.context_algorithm = context_choice(recipe, mesh.layout()).algorithm;
  plan.recomputation = make_recomputation(recipe.train.activation_checkpointing);
  plan.freeze = recipe.train.freeze;
  plan.unit_layers = recipe.parallel.fsdp.unit_layers;
  return plan;
}

}  // namespace meshtrain
