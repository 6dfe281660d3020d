#pragma once

#include <string>
#include <utility>
#include <vector>

namespace meshtrain {

/// The keys that a map of YAML, and the maps in it, can have. A map is named by its path: "train"; an entry of a list
/// by "data.mixture[0]"; the outermost map by "".
class KnownKeys {
 public:
  /// `paths`: of all keys, "train.steps", as KeyLister lists them.
  explicit KnownKeys(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  /// Returns true when the map at `path` can have `key`, whatever else it has.
  bool has(const std::string& path, const std::string& key) const;

  /// Returns `; did you mean "steps"?` for an unknown key in the map at `path`: the nearest key of that map, or else
  /// the complete path of a key of that name, or near it, in another. Empty when there is none.
  std::string suggestion(const std::string& path, const std::string& key) const;

 private:
  std::vector<std::string> paths_;
};

}  // namespace meshtrain
