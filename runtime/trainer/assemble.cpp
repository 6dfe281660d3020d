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

std::optional<int64_t> document_end(const DataOptions& data) {
  const std::vector<MixedSource> sources = data.sources();
  const std::optional<int64_t> end = sources.front().documents;
  const bool same =
      std::all_of(sources.begin(), sources.end(), [&](const SourceOptions& source) { return source.documents == end; });
  return same && end != kDocumentsOfIndex ? end : std::nullopt;
}

std::string tokenizer_of(const Recipe& recipe) {
  if (!recipe.data.tokenizer.empty()) return recipe.data.tokenizer.string();
  return tokenizer_file_in(recipe.model.hf).empty() ? "" : recipe.model.hf.string();
}

namespace {

/// Returns the folder whose files are those of data.tokenizer; empty when it names none that exists.
std::filesystem::path tokenizer_folder(const std::filesystem::path& tokenizer) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(tokenizer, ignored);
  if (!is_folder && !is_tokenizer_file(tokenizer.filename())) return {};
  const std::filesystem::path folder = is_folder ? tokenizer : std::filesystem::absolute(tokenizer).parent_path();
  return tokenizer_files(folder).empty() ? std::filesystem::path() : folder;
}

}  // namespace

CarriedOver carried_over(const Recipe& recipe) {
  CarriedOver carried = carried_over(recipe.model.hf, recipe.model.shape);
  if (const std::filesystem::path own = tokenizer_folder(recipe.data.tokenizer); !own.empty()) carried.tokenizer = own;
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
