#include "runtime/config/key_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>

#include "runtime/config/fields.h"
#include "runtime/config/suggest.h"

namespace meshtrain {
namespace {

/// The archive that lists keys.
class KeyNames {
 public:
  template <class T>
  void field(const std::string& key, const T&, const Rule& rule = {}) {
    names_.push_back(prefix_ + key);
    if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>) {
      for (const std::string& axis : rule.choices) names_.push_back(prefix_ + key + "." + axis);
    }
  }

  template <class Body>
  void map(const std::string& key, const Body& body) {
    names_.push_back(prefix_ + key);
    const std::string outer = prefix_;
    prefix_ += key + ".";
    body(*this);
    prefix_ = outer;
  }

  template <class T>
  void section(const std::string& key, T& value) {
    map(key, [&](KeyNames& inner) { fields(inner, value); });
  }

  template <class T>
  void section(const std::string& key, std::optional<T>&) {
    T value;
    section(key, value);
  }

  template <class T>
  void list(const std::string& key, std::vector<T>&, const std::type_identity_t<T>&) {
    T value;
    section(key, value);
  }

  template <class Action>
  void when_reading(const Action&) {}

  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::string prefix_;
};

std::vector<std::string> list_keys() {
  KeyNames names;
  Recipe recipe;
  names.field("extends", recipe.file);
  fields(names, recipe);
  return names.take();
}

struct SplitKey {
  std::string map;
  std::string name;
};

SplitKey split(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// "data.mixture" of "data.mixture[0]".
std::string without_items(const std::string& path) {
  std::string text;
  for (size_t at = 0; at < path.size(); ++at) {
    if (path[at] == '[') at = path.find(']', at) + 1;
    if (at < path.size()) text += path[at];
  }
  return text;
}

}  // namespace

const std::vector<std::string>& recipe_keys() {
  static const std::vector<std::string> keys = list_keys();
  return keys;
}

bool is_recipe_key(const std::string& path, const std::string& key) {
  const std::vector<std::string>& keys = recipe_keys();
  const std::string whole = path.empty() ? key : without_items(path) + "." + key;
  return key.find('.') == std::string::npos && std::find(keys.begin(), keys.end(), whole) != keys.end();
}

std::string key_suggestion(const std::string& given_path, const std::string& key) {
  const std::string path = without_items(given_path);
  std::vector<std::string> siblings, names;
  std::map<std::string, std::string> path_of_name;
  for (const std::string& known : recipe_keys()) {
    const SplitKey parts = split(known);
    if (parts.map == path) siblings.push_back(parts.name);
    names.push_back(parts.name);
    path_of_name.emplace(parts.name, known);
  }
  const std::string sibling = nearest(key, siblings);
  if (!sibling.empty()) return "; did you mean \"" + sibling + "\"?";
  const std::string elsewhere = nearest(key, names);
  if (!elsewhere.empty()) return "; did you mean \"" + path_of_name[elsewhere] + "\"?";
  return "";
}

}  // namespace meshtrain
