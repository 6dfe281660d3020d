#include "runtime/program/recipe/load.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/fields.h"
#include "runtime/program/recipe/foreign_words.h"
#include "runtime/program/yaml/key_lister.h"
#include "runtime/program/yaml/layers.h"
#include "runtime/program/yaml/reader.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/program/yaml/value.h"
#include "runtime/program/yaml/writer.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"

namespace meshtrain {
namespace {

DocumentedFile read_file(const YamlValue& root, const std::filesystem::path& file, Reader::Files files) {
  DocumentedFile read;
  read.recipe.file = file;
  read.recipe.name = file.stem().string();
  Reader reader(root, recipe_keys(), files);
  fields(reader, read.recipe);
  reader.section("documented", read.documented);
  reader.refuse_missing();
  return read;
}

/// Records the location of `value`, whose key is `key` ("" for the recipe), and of all values in it.
void note_locations(const YamlValue& value, const std::string& key, std::map<std::string, std::string>& locations) {
  const bool says_key = key.empty() || (value.location.source && value.location.source->option_key == key);
  locations[key] = value.location.text() + (says_key ? "" : ": " + key);
  for (const YamlEntry& entry : value.entries) {
    note_locations(entry.value, key.empty() ? entry.key : key + "." + entry.key, locations);
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    note_locations(value.items[i], key + "[" + std::to_string(i) + "]", locations);
  }
}

YamlValue parse_saved(const std::string& yaml) {
  auto source = std::make_shared<YamlSource>();
  source->name = "recipe";
  source->folder = "/";
  return parse_yaml(yaml, source);
}

/// Takes the model from the recipe in `saved` when the folder of model.hf is gone; keys of `recipe` take precedence.
/// Returns true when it did: no file of the model needs to be opened then.
bool recall_model(YamlValue& recipe, const std::string& name, const SavedRecipe& saved) {
  YamlValue* model = recipe.find("model");
  const YamlValue* hf = model == nullptr ? nullptr : model->find("hf");
  if (!saved || hf == nullptr || hf->kind != YamlValue::Kind::Scalar || hf->text.empty()) return false;
  std::error_code ignored;
  if (std::filesystem::exists(hf->location.source->folder / hf->text / "config.json", ignored)) return false;
  const std::string yaml = saved(name);
  if (yaml.empty()) return false;
  YamlValue before = parse_saved(yaml);
  YamlValue* known = before.find("model");
  if (known == nullptr) return false;
  merge_yaml(*known, std::move(*model));
  *model = std::move(*known);
  return true;
}

/// Returns the size of an axis as recipes have it.
std::string size_text_of(int64_t size) {
  return size == MeshLayout::kAuto ? "auto" : scalar_text(size);
}

/// Removes `source` from `data`, and from the sources of its mixture, where another file or option has replaced their
/// `tokens`: these do not come from there.
void forget_replaced_sources(YamlValue& data) {
  const YamlValue *const tokens = data.find("tokens"), *const source = data.find("source");
  if (tokens != nullptr && source != nullptr && source->location.source->is_file &&
      tokens->location.source != source->location.source) {
    std::erase_if(data.entries, [](const YamlEntry& entry) { return entry.key == "source"; });
  }
  if (YamlValue* const mixture = data.find("mixture")) std::ranges::for_each(mixture->items, forget_replaced_sources);
}

/// Throws InputError where --set gives an axis another size than --mesh does.
void refuse_other_sizes(const YamlValue& recipe, const std::string& mesh, const std::map<std::string, int64_t>& sizes) {
  const YamlValue* const parallel = recipe.find("parallel");
  const YamlValue* const set = parallel == nullptr ? nullptr : parallel->find("mesh");
  if (set == nullptr) return;
  for (const auto& [axis, location, value] : set->entries) {
    const auto found = sizes.find(axis);
    const std::string size = found == sizes.end() ? "1" : size_text_of(found->second);
    const bool is_from_file = !value.location.source || value.location.source->is_file;
    if (is_from_file || value.kind != YamlValue::Kind::Scalar || value.text == size) continue;
    throw InputError(value.location.text() + ": --mesh " + mesh + " replaces parallel.mesh and makes " + axis + " " +
                     size + ": leave one of the two out");
  }
}

/// Replaces parallel.mesh with the mesh of --mesh. Throws InputError.
void replace_mesh(YamlValue& recipe, const std::string& mesh) {
  const std::map<std::string, int64_t> sizes = parse_mesh(mesh);
  refuse_other_sizes(recipe, mesh, sizes);
  auto source = std::make_shared<YamlSource>();
  source->name = "--mesh " + mesh;
  source->is_file = false;
  source->option_key = "parallel.mesh";
  const YamlLocation location{source};
  YamlValue axes;
  axes.kind = YamlValue::Kind::Map;
  axes.location = location;
  for (const auto& [axis, size] : sizes) {
    YamlValue value;
    value.kind = YamlValue::Kind::Scalar;
    value.location = location;
    value.text = size_text_of(size);
    axes.entries.push_back({axis, location, std::move(value)});
  }
  merge_yaml(recipe, layer_of("parallel.mesh", YamlValue(), location));  // a null: no axis of the old mesh remains
  merge_yaml(recipe, layer_of("parallel.mesh", std::move(axes), location));
}

/// Merges `options` over `recipe`.
void merge_options(YamlValue& recipe, const std::vector<KeyOption>& options) {
  for (const auto& [option, key, text] : options) {
    auto source = std::make_shared<YamlSource>();
    source->name = option + (text ? " " + *text : "");
    source->is_file = false;
    source->folder = std::filesystem::current_path();
    source->option_key = key;
    const YamlLocation location{source};
    YamlValue value;
    value.location = location;
    if (text) value.kind = YamlValue::Kind::Scalar, value.text = *text;
    merge_yaml(recipe, layer_of(key, std::move(value), location));
  }
}

}  // namespace

const KnownKeys& recipe_keys() {
  static const KnownKeys keys = [] {
    KeyLister lister;
    Recipe recipe;
    lister.field("extends", recipe.file);
    fields(lister, recipe);
    std::optional<DocumentedRun> documented;
    lister.section("documented", documented);
    return KnownKeys(lister.take(), foreign_words());
  }();
  return keys;
}

namespace {

DocumentedFile load_file(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                         const std::string& mesh, const SavedRecipe& saved) {
  YamlValue root = read_layers(file);
  const YamlLocation location = root.location;
  recipe_keys().expand_shorthands(root);
  for (const std::string& text : overrides) merge_yaml(root, override_layer(text, recipe_keys()));
  if (!mesh.empty()) replace_mesh(root, mesh);
  for (const char* key : {"data", "evaluate"}) {
    if (YamlValue* const data = root.find(key)) forget_replaced_sources(*data);
  }
  root.location = location;
  const YamlValue* name = root.find("name");
  const bool recalled = recall_model(root, name == nullptr ? file.stem().string() : name->text, saved);
  DocumentedFile read = read_file(root, std::filesystem::absolute(file).lexically_normal(),
                                  recalled ? Reader::Files::LeaveAlone : Reader::Files::Open);
  note_locations(root, "", read.recipe.locations);
  return read;
}

}  // namespace

Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const std::string& mesh, const SavedRecipe& saved) {
  return load_file(file, overrides, mesh, saved).recipe;
}

DocumentedFile load_documented(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  return load_file(file, overrides, /*mesh=*/"", /*saved=*/{});
}

bool sets_mesh(const std::string& override) {
  const YamlValue layer = override_layer(override, recipe_keys());
  const YamlValue* const parallel = layer.find("parallel");
  return parallel != nullptr && parallel->find("mesh") != nullptr;
}

Recipe with_overrides(const Recipe& recipe, const std::vector<std::string>& overrides) {
  YamlValue root = parse_saved(to_yaml(recipe));
  for (const std::string& text : overrides) merge_yaml(root, override_layer(text, recipe_keys()));
  Recipe changed = parse_recipe(root);
  changed.file = recipe.file;
  return changed;
}

std::string to_yaml(const Recipe& recipe) {
  Recipe copy = recipe;  // fields() takes references that can be written to
  Writer writer;
  fields(writer, copy);
  return writer.text();
}

Manifest read_run_manifest(const std::filesystem::path& folder) {
  Manifest manifest = read_manifest(folder);
  if (!manifest.head.recipe.empty()) return manifest;
  throw InputError("the checkpoint " + folder.string() +
                   " has no recipe: a program with libmeshtrain.so saved it, and only that program knows the model; "
                   "load it there, or examine it with meshtrain checkpoint inspect and verify");
}

Recipe parse_recipe(const std::string& yaml) {
  return parse_recipe(parse_saved(yaml));
}

Recipe parse_recipe(const std::string& yaml, const std::vector<KeyOption>& options) {
  YamlValue root = parse_saved(yaml);
  merge_options(root, options);
  return parse_recipe(root);
}

Recipe recipe_of_folder(const std::filesystem::path& folder, const std::vector<KeyOption>& options) {
  YamlValue root = parse_saved(
      "{name: folder, data: {tokens: /}, train: {global_batch: 1, steps: 1}, optimizer: {learning_rate: 0}}");
  root.location.source = std::make_shared<YamlSource>(YamlSource{folder.string(), "/", true, ""});
  merge_options(root, {{"", "model.hf", std::filesystem::absolute(folder).lexically_normal().string()}});
  merge_options(root, options);
  return read_file(root, {}, Reader::Files::Open).recipe;
}

Recipe parse_recipe(const YamlValue& yaml) {
  return read_file(yaml, {}, Reader::Files::LeaveAlone).recipe;
}

}  // namespace meshtrain
