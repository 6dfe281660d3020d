#include "runtime/program/recipe/patterns.h"

#include <algorithm>
#include <array>
#include <set>

#include "mesh/base/files/glob.h"
#include "runtime/program/recipe/fields.h"
#include "runtime/program/yaml/reader.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {

std::vector<std::string> parameter_names(const ModelShape& shape) {
  std::vector<std::string> names;
  for (TensorEntry& tensor : declared_tensors(shape, at::kFloat)) names.push_back(std::move(tensor.name));
  for (TensorEntry& tensor : declared_adapters(shape, at::kFloat)) names.push_back(std::move(tensor.name));
  return names;
}

namespace {

/// Replaces the layer's number: "model.layers.7.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight".
std::string of_every_layer(const std::string& name) {
  std::string general;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    general += (begin == 0 ? "" : ".") + (number ? "*" : part);
    begin = end + 1;
  }
  return general;
}

/// Returns the patterns that people usually write: names, and globs for a part of a name at its begin, end or middle,
/// for one layer or for all.
std::vector<std::string> usual_patterns(const std::vector<std::string>& names) {
  constexpr size_t kEnough = 4096;  // patterns of single layers, in a deep model
  std::set<std::string> patterns;
  for (const std::string& each : names) {
    for (const std::string& name : {of_every_layer(each), each}) {
      if (name == each && patterns.size() > kEnough) continue;
      patterns.insert(name);
      for (size_t dot = name.find('.'), next; dot != std::string::npos; dot = next) {
        next = name.find('.', dot + 1);
        patterns.insert(name.substr(0, dot) + ".*");
        patterns.insert("*" + name.substr(dot));
        if (next != std::string::npos) patterns.insert("*" + name.substr(dot, next - dot) + ".*");
      }
    }
  }
  return {patterns.begin(), patterns.end()};
}

std::string matches_nothing(const std::string& pattern, const std::vector<std::string>& names) {
  const std::string near = nearest(pattern, usual_patterns(names));
  return meshtrain::quoted(pattern) + " matches no parameter of the model" +
         (near.empty() ? ": its parameters have names such as " + names.front() + ", and case matters"
                       : "; did you mean \"" + near + "\"?");
}

void check_freeze(const Reader& reader, const std::vector<std::string>& freeze, const std::vector<std::string>& names,
                  bool has_adapters) {
  for (size_t i = 0; i < freeze.size(); ++i) {
    const auto matched = [&](const std::string& name) { return matches(freeze[i], name); };
    if (std::none_of(names.begin(), names.end(), matched)) {
      reader.fail_item("train.freeze", i, "", matches_nothing(freeze[i], names));
    }
  }
  const auto frozen = [&](const std::string& name) { return first_match(freeze, name).has_value(); };
  if (!has_adapters && std::all_of(names.begin(), names.end(), frozen)) {
    reader.fail_item("train.freeze", freeze.size() - 1, "",
                     "with this pattern every parameter is frozen: remove one of the patterns");
  }
}

/// Returns the names of the layers that may have adapters: linear layers of blocks, then those outside.
std::vector<std::string> adaptable_layers(const std::vector<std::string>& names) {
  constexpr std::string_view kWeight = "_proj.weight";
  std::vector<std::string> layers;
  for (const std::string& name : names) {
    if (name.ends_with(kWeight)) layers.push_back(name.substr(0, name.rfind('.')));
  }
  layers.insert(layers.end(), {kEmbeddingLayer, kHeadLayer});
  return layers;
}

/// Returns true when an adapter's target names experts or their router, which may have no adapters.
bool names_experts(const std::string& target, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    if (!of_experts(name)) return false;
    constexpr std::array kLayers = {"gate_proj", "up_proj", "down_proj", "gate_up_proj", "gate", "experts"};
    return std::ranges::find(kLayers, target) != kLayers.end() || matches(target, name) ||
           matches(target, name.substr(0, name.rfind('.')));
  });
}

void check_adapter(const Reader& reader, const AdapterShape& adapter, int64_t num_layers,
                   const std::vector<std::string>& names) {
  const std::vector<std::string> layers = adaptable_layers(names);
  if (adapter.targets.empty()) reader.fail("adapter.targets", "is empty: name layers, as in [all-linear]");
  for (size_t i = 0; i < adapter.targets.size(); ++i) {
    AdapterShape alone{.rank = 1, .targets = {adapter.targets[i]}};
    const auto is_target = [&](const std::string& layer) { return adapter_of(alone, layer, layer, 1).has_value(); };
    const auto target = std::ranges::find_if(layers, is_target);
    if (target == layers.end() && names_experts(adapter.targets[i], names)) {
      reader.fail_item(
          "adapter.targets", i, "",
          meshtrain::quoted(adapter.targets[i]) +
              " names experts, which cannot have adapters: leave it out, or use all-linear for the other layers");
    }
    if (target == layers.end()) {
      reader.fail_item("adapter.targets", i, "",
                       meshtrain::quoted(adapter.targets[i]) +
                           " matches no layer that may have an adapter: use q_proj, k_proj, v_proj, o_proj, gate_proj, "
                           "up_proj, down_proj, all-linear, embed_tokens, lm_head, or a pattern for names such as " +
                           layers.front());
    }
    const bool in_block = *target != kEmbeddingLayer && *target != kHeadLayer;
    if (in_block || adapter.layers.empty()) continue;
    reader.fail_item("adapter.targets", i, "",
                     *target +
                         " is outside the blocks, and with adapter.layers only blocks have adapters, as in PEFT: leave "
                         "adapter.layers out, and name layers of blocks by patterns such as " +
                         meshtrain::quoted("*.layers.0.*.q_proj"));
  }
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    if (adapter.layers[i] < num_layers) continue;
    reader.fail_item("adapter.layers", i, "",
                     std::to_string(adapter.layers[i]) + " is not a block: the model has blocks 0 to " +
                         std::to_string(num_layers - 1));
  }
  for (size_t i = 0; i < adapter.train.size(); ++i) {
    const auto matched = [&](const std::string& name) { return matches(adapter.train[i], name); };
    if (std::ranges::none_of(names, matched)) {
      reader.fail_item("adapter.train", i, "", matches_nothing(adapter.train[i], names));
    }
  }
}

/// Checks that each parameter of the base in the folder adapter.from is trained: checkpoints leave out what is frozen,
/// and model.hf has another value.
void check_from(const Reader& reader, const ModelShape& shape, const std::vector<std::string>& freeze) {
  const AdapterShape& adapter = shape.adapter;
  if (adapter.from.empty() || !reader.opens_files()) return;
  for (const std::string& name : base_parameters_of_peft(SafetensorsFile(adapter.from / kPeftWeights), shape)) {
    if (is_trained(adapter, freeze, name)) continue;
    reader.fail("adapter.train", name + " would be frozen at the value in the folder adapter.from: name it in " +
                                     "adapter.train too, or leave adapter.train out, and keep it out of train.freeze");
  }
}

/// Checks that adapters can be merged into the model that train.export writes.
void check_export(const Reader& reader, const Recipe& recipe) {
  const ModelShape& shape = recipe.model.shape;
  if (recipe.train.export_folder.empty() || !shape.tie_word_embeddings || !adapts_vocabulary(shape.adapter)) return;
  reader.fail("train.export",
              "the embedding is also the head, and merging an adapter makes them two tensors: leave it out, and write "
              "the model with meshtrain checkpoint export, which unties them");
}

void check_groups(const Reader& reader, const std::vector<GroupOptions>& groups,
                  const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const GroupOptions& group : groups) patterns.push_back(group.pattern);
  std::vector<bool> first(groups.size()), any(groups.size());
  for (const std::string& name : names) {
    for (size_t i = 0; i < groups.size(); ++i) any[i] = any[i] || matches(patterns[i], name);
    if (const auto group = first_match(patterns, name)) first[*group] = true;
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!any[i]) reader.fail_item("optimizer.groups", i, "pattern", matches_nothing(patterns[i], names));
    if (first[i]) continue;
    reader.fail_item(
        "optimizer.groups", i, "pattern",
        "every parameter that " + meshtrain::quoted(patterns[i]) +
            " matches already belongs to an earlier group, and the first match counts: move this group up");
  }
}

}  // namespace

void check_patterns(Reader& reader, const Recipe& recipe) {
  const AdapterShape& adapter = recipe.model.shape.adapter;
  if (recipe.train.freeze.empty() && recipe.optimizer.groups.empty() && !adapter) return;
  const std::vector<std::string> names = parameter_names(recipe.model.shape);
  if (adapter) check_adapter(reader, adapter, recipe.model.shape.num_hidden_layers, names);
  if (!recipe.train.freeze.empty()) check_freeze(reader, recipe.train.freeze, names, static_cast<bool>(adapter));
  if (adapter) check_from(reader, recipe.model.shape, recipe.train.freeze);
  if (adapter) check_export(reader, recipe);
  check_groups(reader, recipe.optimizer.groups, names);
}

}  // namespace meshtrain
