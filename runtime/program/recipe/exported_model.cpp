#include "runtime/program/recipe/exported_model.h"

#include <algorithm>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

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

}  // namespace meshtrain
