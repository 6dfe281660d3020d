#include "runtime/program/yaml/known_keys.h"

#include <algorithm>
#include <map>

#include "mesh/base/files/lower_case.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {
namespace {

struct SplitKey {
  std::string map;
  std::string name;
};

SplitKey split(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// Returns "data.mixture" for "data.mixture[0]".
std::string without_items(const std::string& path) {
  std::string text;
  for (size_t at = 0; at < path.size();) {
    const size_t end = path[at] == '[' ? path.find(']', at) : std::string::npos;
    if (end == std::string::npos) {
      text += path[at++];
    } else {
      at = end + 1;
    }
  }
  return text;
}

}  // namespace

std::string ForeignAnswer::here() const {
  switch (kind) {
    case Kind::Name:
      return "; here it is " + text;
    case Kind::Option:
      return "; here it is an option: " + text;
    case Kind::Sentence:
      return "; here " + text;
    case Kind::None:
      break;
  }
  return "";
}

bool KnownKeys::has(const std::string& path, const std::string& key) const {
  return key.find('.') == std::string::npos && find(path.empty() ? key : path + "." + key) != nullptr;
}

const KnownKey* KnownKeys::find(const std::string& path) const {
  const std::string complete = without_items(path);
  const auto found =
      std::find_if(keys_.begin(), keys_.end(), [&](const KnownKey& key) { return key.path == complete; });
  return found == keys_.end() ? nullptr : &*found;
}

ForeignAnswer KnownKeys::foreign_word(const std::string& path, const std::string& key) const {
  using Kind = ForeignAnswer::Kind;
  std::string name = lower_case(key);
  std::replace(name.begin(), name.end(), '-', '_');
  const auto answer_to = [&](const std::string& word) {
    const auto known = std::ranges::find(words_, word, &ForeignWord::word);
    return known == words_.end() ? ForeignAnswer() : known->answer;
  };
  if (path.empty()) return answer_to(name);
  std::vector<ForeignAnswer> answers = {answer_to(without_items(path) + "." + name)};
  const ForeignAnswer of_map = find(path) == nullptr ? answer_to(lower_case(path)) : ForeignAnswer();
  const KnownKey* map = of_map.kind == Kind::Name ? find(of_map.text) : nullptr;
  if (map != nullptr) {  // "training", which is train
    const std::string here = map->path + "." + name;
    if (find(here) != nullptr) answers.push_back({Kind::Name, here});
    answers.push_back(answer_to(here));
  }
  answers.push_back(answer_to(name));
  for (const ForeignAnswer& answer : answers) {
    if (answer) return answer;
  }
  return {};
}

ForeignAnswer KnownKeys::foreign_value(const std::string& path, const std::string& value) const {
  const std::string of_value = "=" + lower_case(value), key = without_items(path);
  for (const std::string& word : {key + of_value, key.substr(key.rfind('.') + 1) + of_value}) {
    const auto known = std::ranges::find(words_, word, &ForeignWord::word);
    if (known != words_.end()) return known->answer;
  }
  return foreign_word(path, value);
}

std::string KnownKeys::suggestion(const std::string& given_path, const std::string& key) const {
  if (const ForeignAnswer foreign = foreign_word(given_path, key)) return foreign.here();
  const std::string path = without_items(given_path);
  std::vector<std::string> siblings, names;
  std::map<std::string, std::string> path_of_name;
  for (const KnownKey& known : keys_) {
    const SplitKey parts = split(known.path);
    if (parts.map == path) siblings.push_back(parts.name);
    names.push_back(parts.name);
    path_of_name.emplace(parts.name, known.path);
  }
  const std::string sibling = nearest(key, siblings);
  if (!sibling.empty()) return "; did you mean \"" + sibling + "\"?";
  const std::string elsewhere = nearest(key, names);
  if (!elsewhere.empty()) return "; did you mean \"" + path_of_name[elsewhere] + "\"?";
  return "";
}

std::string KnownKeys::complete(const std::string& path) const {
  const std::string first = path.substr(0, path.find_first_of(".["));
  if (find(first) != nullptr) return path;
  const std::string end = "." + without_items(path);
  std::string found;
  for (const KnownKey& key : keys_) {
    if (!key.path.ends_with(end)) continue;
    if (!found.empty()) return path;
    found = key.path;
  }
  return found.empty() ? path : found.substr(0, found.size() - end.size() + 1) + path;
}

void KnownKeys::expand_shorthands(YamlValue& map, const std::string& path) const {
  for (YamlEntry& entry : map.entries) {
    const std::string complete = path.empty() ? entry.key : path + "." + entry.key;
    const KnownKey* key = find(complete);
    if (key == nullptr) continue;
    if (entry.value.kind == YamlValue::Kind::Scalar && !key->shorthand.empty()) {
      YamlValue inner;
      inner.kind = YamlValue::Kind::Map;
      inner.location = entry.value.location;
      inner.entries.push_back({key->shorthand, entry.location, std::move(entry.value)});
      entry.value = std::move(inner);
    }
    expand_shorthands(entry.value, complete);
  }
}

}  // namespace meshtrain
