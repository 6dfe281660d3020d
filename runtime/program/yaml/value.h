#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace meshtrain {

/// The source of YAML text: a file, or an option of the command line.
struct YamlSource {
  std::string name;              ///< "recipes/x.yaml" or "--set train.steps=20"
  std::filesystem::path folder;  ///< the folder that relative paths in it start from
  bool is_file = true;           ///< messages name line and column
  std::string option_key;        ///< "train.steps": the key that an option's name contains already
};

/// A location in a source, for messages.
struct YamlLocation {
  std::shared_ptr<const YamlSource> source;
  int line = 0;    ///< from 1; 0: the source as a whole
  int column = 0;  ///< from 1

  /// "recipes/x.yaml:12:5", "recipes/x.yaml" or "--set train.steps=20".
  std::string text() const;
};

struct YamlEntry;

/// A YAML value with its location. Scalars are kept as text: the code that reads one decides what it means.
struct YamlValue {
  enum class Kind { Null, Scalar, List, Map };

  Kind kind = Kind::Null;
  YamlLocation location;
  std::string text;     ///< scalar
  bool quoted = false;  ///< scalar in quotes, or one tagged !!str: a text whatever it looks like
  std::vector<YamlValue> items;
  std::vector<YamlEntry> entries;  ///< map, in the order of the text; keys are unique

  /// Returns the value under `key`; null when this is not a map or has no such key.
  const YamlValue* find(const std::string& key) const;
  YamlValue* find(const std::string& key);

  /// Returns "\"twenty\"", "20", "a list", "a map" or "nothing": for messages, on one line.
  std::string shown() const;
};

struct YamlEntry {
  std::string key;
  YamlLocation location;
  YamlValue value;
};

/// Parses one YAML document and replaces aliases by their values. Throws InputError, with the location, for text that
/// is not YAML or not text at all, several documents, duplicate keys, keys that are not plain scalars, foreign tags,
/// and values nested or repeated without bound.
YamlValue parse_yaml(const std::string& text, const std::shared_ptr<const YamlSource>& source);

/// Merges `over` into `base`: maps merge key by key, any other value replaces the old one, a null too. A map whose keys
/// are whole numbers merges into these items of a list, from 0. Throws InputError for an item that the list does not
/// have.
void merge_yaml(YamlValue& base, YamlValue over);

/// Returns `text` in double quotes on one line, for a message: characters that do not print are escaped, a long text is
/// cut.
std::string quoted(const std::string& text);

/// Returns true when `text` has characters that end a line or do not print. Keys and words must have none.
bool has_control_characters(const std::string& text);

}  // namespace meshtrain
