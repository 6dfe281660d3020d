#include "runtime/checkpoint/recipe_changes.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/config/yaml_value.h"

namespace meshtrain {
namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;  // in the order of the text

constexpr std::string_view kModel = "model.";
/// What must stay as it is besides, once something was trained: a whole map where it ends with a dot.
constexpr std::array<std::string_view, 4> kTraining = {"data.", "train.sequence_length", "train.seed",
                                                       "optimizer.name"};
constexpr std::string_view kMixture = "data.mixture";
/// But for these: where files lie, and what mattered at the start alone.
constexpr std::array<std::string_view, 5> kFree = {"model.hf", "model.init", "data.tokens", "data.source",
                                                   "data.loss_mask"};

std::string value_text(const YamlValue& value) {
  if (value.kind == YamlValue::Kind::Null) return "none";
  if (value.kind == YamlValue::Kind::Scalar) return value.text;
  std::string text;
  for (const YamlValue& item : value.items) text += (text.empty() ? "" : ", ") + value_text(item);
  for (const YamlEntry& entry : value.entries) {
    text += (text.empty() ? "" : ", ") + entry.key + ": " + value_text(entry.value);
  }
  return value.kind == YamlValue::Kind::List ? "[" + text + "]" : "{" + text + "}";
}

void add_keys(const YamlValue& value, const std::string& path, Keys& keys) {
  if (path == kMixture) {  // its entries are known by their place: another order is another order of samples
    for (size_t i = 0; i < value.items.size(); ++i)
      add_keys(value.items[i], path + "[" + std::to_string(i) + "]", keys);
    return;
  }
  if (value.kind != YamlValue::Kind::Map) {
    keys.emplace_back(path, value_text(value));
    return;
  }
  for (const YamlEntry& entry : value.entries) {
    add_keys(entry.value, path.empty() ? entry.key : path + "." + entry.key, keys);
  }
}

Keys keys_of(const std::string& yaml, const std::string& name) {
  auto source = std::make_shared<YamlSource>();
  source->name = name;
  Keys keys;
  add_keys(parse_yaml(yaml, source), "", keys);
  return keys;
}

/// "data.weight" of "data.mixture[1].weight".
std::string without_entry(const std::string& key) {
  return key.starts_with(std::string(kMixture) + "[") ? "data" + key.substr(key.find(']') + 1) : key;
}

bool is_fixed(const std::string& full_key, bool trained) {
  const std::string key = without_entry(full_key);
  if (std::find(kFree.begin(), kFree.end(), key) != kFree.end()) return false;
  if (key.starts_with(kModel) || !trained) return key.starts_with(kModel);
  return std::any_of(kTraining.begin(), kTraining.end(), [&](std::string_view fixed) {
    return fixed.ends_with('.') ? key.starts_with(fixed) : key == fixed;
  });
}

}  // namespace

RecipeChanges compare_recipes(const std::string& saved, const std::string& asked, bool trained) {
  const Keys before = keys_of(saved, "the checkpoint's recipe"), now = keys_of(asked, "the recipe");
  std::map<std::string, std::string> old(before.begin(), before.end());
  RecipeChanges changes;
  const auto add = [&](const std::string& key, const std::string& value, const std::string& was) {
    (is_fixed(key, trained) ? changes.contradictions : changes.allowed).push_back(key + ": " + value + ", was " + was);
  };
  for (const auto& [key, value] : now) {
    const auto found = old.find(key);
    const std::string was = found == old.end() ? "none" : found->second;
    if (was != value) add(key, value, was);
    if (found != old.end()) old.erase(found);
  }
  for (const auto& [key, was] : old) {
    if (was != "none") add(key, "none", was);
  }
  return changes;
}

}  // namespace meshtrain
