#include "runtime/yaml/known_keys.h"

#include <algorithm>
#include <map>

#include "runtime/yaml/suggest.h"

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
  for (size_t at = 0; at < path.size(); ++at) {
    if (path[at] == '[') at = path.find(']', at) + 1;
    if (at < path.size()) text += path[at];
  }
  return text;
}

}  // namespace

bool KnownKeys::has(const std::string& path, const std::string& key) const {
  const std::string complete = path.empty() ? key : without_items(path) + "." + key;
  return key.find('.') == std::string::npos && std::find(paths_.begin(), paths_.end(), complete) != paths_.end();
}

std::string KnownKeys::suggestion(const std::string& given_path, const std::string& key) const {
  const std::string path = without_items(given_path);
  std::vector<std::string> siblings, names;
  std::map<std::string, std::string> path_of_name;
  for (const std::string& known : paths_) {
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
