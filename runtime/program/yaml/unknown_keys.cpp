#include "runtime/program/yaml/unknown_keys.h"

#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {
namespace {

constexpr size_t kMostShown = 20;

struct UnknownKey {
  std::string name;    // "recipes/x.yaml:12:5: train.stpes"
  std::string answer;  // `; did you mean "steps"?`, or empty
};

class Search {
 public:
  explicit Search(const KnownKeys& keys) : keys_(keys) {}

  void visit(const YamlValue& value, const std::string& path) {
    for (const YamlEntry& entry : value.entries) visit_entry(entry, path);
  }

  std::vector<UnknownKey> take() { return std::move(found_); }

 private:
  void visit_entry(const YamlEntry& entry, const std::string& map) {
    const std::string path = map.empty() ? entry.key : map + "." + entry.key;
    if (!keys_.has(map, entry.key)) {
      if (map.empty() && !entry.value.entries.empty()) return visit_unknown_map(entry);
      return add(entry, path, keys_.suggestion(map, entry.key));
    }
    const std::string& kind = keys_.find(path)->kind;
    if (kind == "a map of keys") visit(entry.value, path);
    if (kind == "a map of sizes") visit_axes(entry.value, path);
    if (kind != "a list of maps of keys") return;
    for (size_t i = 0; i < entry.value.items.size(); ++i) {
      visit(entry.value.items[i], path + "[" + std::to_string(i) + "]");
    }
  }

  /// Answers for axes of other systems; the reader names the axes for other words.
  void visit_axes(const YamlValue& value, const std::string& path) {
    for (const YamlEntry& axis : value.entries) {
      const ForeignAnswer answer = keys_.has(path, axis.key) ? ForeignAnswer() : keys_.foreign_word(path, axis.key);
      if (answer) add(axis, path + "." + axis.key, answer.here());
    }
  }

  /// Answers for the keys of an outermost map that may be another system's, and for the map when one has no answer.
  void visit_unknown_map(const YamlEntry& map) {
    const ForeignAnswer answer = keys_.foreign_word("", map.key);
    const std::string suggestion = keys_.suggestion("", map.key);
    std::vector<UnknownKey> inner;
    bool all_answered = true;
    for (const YamlEntry& entry : map.value.entries) {
      const ForeignAnswer of_key = keys_.foreign_word(map.key, entry.key);
      if (!of_key) all_answered = false;
      if (of_key) inner.push_back({name_of(entry, map.key + "." + entry.key), of_key.here()});
    }
    const bool is_misspelt = !answer && !suggestion.empty();
    if (is_misspelt || !all_answered) add(map, map.key, suggestion);
    if (!is_misspelt) found_.insert(found_.end(), inner.begin(), inner.end());
  }

  void add(const YamlEntry& entry, const std::string& path, const std::string& answer) {
    found_.push_back({name_of(entry, path), answer});
  }

  static std::string name_of(const YamlEntry& entry, const std::string& path) {
    // The name of an option that sets only this key already contains the key.
    const YamlLocation& location = entry.location;
    const bool said = location.source && location.source->option_key == path;
    return location.text() + (said ? "" : ": " + path);
  }

  const KnownKeys& keys_;
  std::vector<UnknownKey> found_;
};

}  // namespace

void refuse_unknown_keys(const YamlValue& root, const KnownKeys& keys) {
  Search search(keys);
  search.visit(root, "");
  const std::vector<UnknownKey> found = search.take();
  if (found.empty()) return;
  if (found.size() == 1) throw InputError(found[0].name + ": unknown key" + found[0].answer);
  std::string text = std::to_string(found.size()) + " unknown keys:";
  for (size_t i = 0; i < found.size() && i < kMostShown; ++i) {
    const std::string& answer = found[i].answer;
    text += "\n  " + found[i].name + (answer.empty() ? "" : ": " + answer.substr(2));  // without its "; "
  }
  if (found.size() > kMostShown) text += "\n  and " + std::to_string(found.size() - kMostShown) + " more";
  throw InputError(text);
}

}  // namespace meshtrain
