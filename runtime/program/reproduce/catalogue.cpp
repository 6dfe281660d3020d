#include "runtime/program/reproduce/catalogue.h"

#include <algorithm>

#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// Returns the names of all recipes below `folder`, in order.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::recursive_directory_iterator(folder, error); !error && at != fs::end(at); at.increment(error)) {
    const fs::path& file = at->path();
    if (file.extension() != ".yaml" || file.filename().string().starts_with("base")) continue;
    names.push_back(fs::relative(file, folder).replace_extension());
  }
  if (names.empty()) {
    throw InputError("--recipes " + folder.string() +
                     ": has no recipes: give the folder `recipes` of the repository, or start there");
  }
  std::ranges::sort(names);
  return names;
}

DocumentedRecipe read(const fs::path& folder, const std::string& name, const DocumentedRun& documented) {
  const fs::path file = folder / (name + ".yaml");
  return {name, file, load_recipe(file, {"model.init=random"}, ""), documented};
}

std::string missing_tokens(const SourceOptions& source, const fs::path& tokens, const std::string& key) {
  std::error_code ignored;
  if (tokens.empty() || fs::exists(tokens, ignored)) return "";
  return key + ": " + tokens.string() + " does not exist" +
         (source.source.empty() ? "" : "; make it with: " + source.source);
}

}  // namespace

int64_t DocumentedRecipe::num_ranks() const {
  return ranks_of(recipe.parallel.mesh);
}

std::string DocumentedRecipe::mesh() const {
  return MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, num_ranks()).describe();
}

std::string DocumentedRecipe::model() const {
  const ModelShape& shape = recipe.model.shape;
  if (!recipe.model.hf.empty()) return recipe.model.hf.filename();
  return shape.family + ", " + std::to_string(shape.num_hidden_layers) + " x " + std::to_string(shape.hidden_size);
}

std::vector<DocumentedRecipe> documented_recipes(const fs::path& folder) {
  std::vector<DocumentedRecipe> all;
  for (const std::string& name : names_in(folder)) {
    const std::optional<DocumentedRun> documented = load_documented(folder / (name + ".yaml"));
    if (documented) all.push_back(read(folder, name, *documented));
  }
  return all;
}

DocumentedRecipe documented_recipe(const fs::path& folder, const std::string& name) {
  const std::vector<std::string> names = names_in(folder);
  std::string asked = name;
  std::error_code ignored;
  if (fs::exists(name, ignored)) asked = fs::relative(name, folder, ignored).replace_extension();
  std::vector<std::string> ends;
  std::ranges::copy_if(names, std::back_inserter(ends),
                       [&](const std::string& each) { return each == asked || each.ends_with("/" + asked); });
  if (ends.size() > 1) throw InputError("reproduce " + name + ": several have this name: " + joined(ends));
  if (ends.empty()) {
    std::vector<std::string> known = names;
    for (const std::string& each : names) known.push_back(each.substr(each.rfind('/') + 1));
    const std::string meant = nearest(asked, known);
    throw InputError("reproduce " + name + ": there is no such recipe" +
                     (meant.empty() ? "" : "; did you mean " + meant + "?") + ": meshtrain reproduce lists all");
  }
  const std::optional<DocumentedRun> documented = load_documented(folder / (ends.front() + ".yaml"));
  if (!documented) {
    throw InputError("reproduce " + name + ": this recipe has no section `documented`, so it reproduces nothing");
  }
  return read(folder, ends.front(), *documented);
}

std::vector<std::string> missing_files(const DocumentedRecipe& recipe) {
  std::vector<std::string> missing;
  try {
    load_recipe(recipe.file, {}, "");
  } catch (const InputError& error) {
    missing.emplace_back(error.what());
  }
  const DataOptions& data = recipe.recipe.data;
  missing.push_back(missing_tokens(data, data.tokens, "data.tokens"));
  for (const MixedSource& each : data.mixture) missing.push_back(missing_tokens(each, each.tokens, "data.mixture"));
  std::erase(missing, "");
  return missing;
}

}  // namespace meshtrain
