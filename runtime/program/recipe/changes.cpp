#include "runtime/program/recipe/changes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/yaml/flat_keys.h"

namespace meshtrain {
namespace {

using Keys = FlatKeys;

constexpr std::string_view kModel = "model.";
/// The keys that must not change either, once something was trained: all keys of a map when the name ends with a dot.
constexpr std::array<std::string_view, 5> kTraining = {"adapter.", "data.", "train.sequence_length", "train.seed",
                                                       "optimizer.name"};
constexpr std::string_view kMixture = "data.mixture";
/// The keys of a single file, which mean nothing beside a mixture.
constexpr std::array<std::string_view, 3> kOfOneFile = {"data.tokens", "data.source", "data.loss_mask"};
constexpr std::string_view kMesh = "parallel.mesh.";
/// The exceptions: paths of files, keys that matter only at the start, and how the padding token is trained.
constexpr std::array<std::string_view, 9> kFree = {
    "adapter.from", "model.hf",    "model.init",     "model.pad_token_id", "model.freeze_padding_row",
    "data.tokens",  "data.source", "data.loss_mask", "data.tokenizer"};

YamlValue parse(const std::string& yaml, const std::string& name) {
  auto source = std::make_shared<YamlSource>();
  source->name = name;
  source->folder = "/";
  return parse_yaml(yaml, source);
}

Keys keys_of(const YamlValue& recipe) {
  return flat_keys(recipe, kMixture);  // entries are compared by index: another order is another order of samples
}

/// Returns the file of a map of `data`: "/data/a.bin".
std::string tokens_of(const YamlValue& source) {
  const YamlValue* tokens = source.find("tokens");
  return tokens == nullptr ? "none" : flat_text(*tokens);
}

/// Describes the data in a few words.
std::string describe_sources(const YamlValue& data, const std::vector<YamlValue>& mixture) {
  constexpr size_t kMost = 4;
  if (mixture.empty()) return "the one file " + tokens_of(data);
  std::string text = "a mixture of " + counted(mixture.size(), "file") + " (";
  for (size_t i = 0; i < mixture.size() && i < kMost; ++i) text += (i == 0 ? "" : ", ") + tokens_of(mixture[i]);
  return text + (mixture.size() > kMost ? ", ...)" : ")");
}

/// Replaces those of `keys` for which `is_one` is true, if any, by the one `key`.
void fold(Keys& keys, const std::string& key, const std::string& value,
          const std::function<bool(const std::string&)>& is_one) {
  const auto says = [&](const auto& each) { return is_one(each.first); };
  const auto first = std::find_if(keys.begin(), keys.end(), says);
  if (first == keys.end()) return;
  *first = {key, value};
  keys.erase(std::remove_if(first + 1, keys.end(), says), keys.end());
}

/// Folds the entries of a mixture that the other recipe does not have into a line each, and a mixture beside a single
/// file, or the reverse, into one line.
void fold_sources(Keys& keys, const YamlValue& recipe, const YamlValue& other) {
  static const YamlValue none;
  const auto data_of = [](const YamlValue& any) { return any.find("data") == nullptr ? &none : any.find("data"); };
  const auto mixture_of = [](const YamlValue* data) {
    const YamlValue* found = data->find("mixture");
    return found == nullptr ? none.items : found->items;
  };
  const YamlValue* data = data_of(recipe);
  const std::vector<YamlValue> mixture = mixture_of(data), others = mixture_of(data_of(other));
  const std::string entries = std::string(kMixture) + "[";
  if (mixture.empty() != others.empty()) {
    fold(keys, std::string(kMixture), describe_sources(*data, mixture), [&](const std::string& key) {
      return key.starts_with(entries) || std::find(kOfOneFile.begin(), kOfOneFile.end(), key) != kOfOneFile.end();
    });
    return;
  }
  for (size_t i = others.size(); i < mixture.size(); ++i) {
    const std::string entry = entries + std::to_string(i) + "]";
    fold(keys, entry, tokens_of(mixture[i]), [&](const std::string& key) { return key.starts_with(entry + "."); });
  }
}

/// Returns true when `recipe` would have `value` under `key` without setting it.
bool is_default(YamlValue recipe, const std::string& key, const std::string& value) try {
  YamlValue* at = &recipe;
  for (size_t begin = 0; at != nullptr && begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    at = at->find(key.substr(begin, end - begin));
    begin = end + 1;
  }
  if (at == nullptr) return false;
  *at = YamlValue();
  const Keys defaults = keys_of(parse(to_yaml(parse_recipe(recipe)), "the recipe"));
  return std::find(defaults.begin(), defaults.end(), std::pair(key, value)) != defaults.end();
} catch (const InputError&) {  // the key is required, or another version of the program wrote it
  return false;
}

/// Returns "data.weight" for "data.mixture[1].weight".
std::string without_entry(const std::string& key) {
  if (!key.starts_with(std::string(kMixture) + "[") || key.ends_with(']')) return key;
  return "data" + key.substr(key.find(']') + 1);
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
  const YamlValue before = parse(saved, "the checkpoint's recipe"), now = parse(asked, "the recipe");
  Keys saved_keys = keys_of(before), asked_keys = keys_of(now);
  fold_sources(saved_keys, before, now);
  fold_sources(asked_keys, now, before);
  std::map<std::string, std::string> old(saved_keys.begin(), saved_keys.end());
  RecipeChanges changes;
  const auto add = [&](const std::string& key, const std::string& value, const std::string& was) {
    (is_fixed(key, trained) ? changes.contradictions : changes.allowed).push_back(key + ": " + value + ", was " + was);
  };
  // The default of a key that only one of the recipes can have is no change that a user made.
  const auto is_news = [&](const YamlValue& recipe, const std::string& key, const std::string& value) {
    if (value == "none") return false;
    return is_fixed(key, trained) || !is_default(recipe, key, value);
  };
  for (const auto& [key, value] : asked_keys) {
    const auto found = old.find(key);
    if (found == old.end()) {
      const bool first_mesh = key.starts_with(kMesh);  // an import has none
      if (!first_mesh && is_news(now, key, value)) add(key, value, "none");
      continue;
    }
    if (found->second != value) add(key, value, found->second);
    old.erase(found);
  }
  for (const auto& [key, was] : old) {
    if (is_news(before, key, was)) add(key, "none", was);
  }
  return changes;
}

}  // namespace meshtrain
