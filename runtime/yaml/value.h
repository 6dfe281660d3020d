#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace meshtrain {

/// Where YAML text came from: a file, or an option of the command line.
struct YamlSource {
  std::string name;              ///< "recipes/x.yaml" or "--set train.steps=20"
  std::filesystem::path folder;  ///< what paths written in it are relative to
  bool is_file = true;           ///< messages name line and column
  std::string option_key;        ///< "train.steps": the key that the name of an option already says
};

/// A place in a source, for messages.
struct YamlPlace {
  std::shared_ptr<const YamlSource> source;
  int line = 0;    ///< from 1; 0: the source as a whole
  int column = 0;  ///< from 1

  /// "recipes/x.yaml:12:5", "recipes/x.yaml" or "--set train.steps=20".
  std::string text() const;
};

struct YamlEntry;

/// A YAML value that knows where it stands. Scalars are kept as text: what they mean is decided by who asks.
struct YamlValue {
  enum class Kind { Null, Scalar, List, Map };

  Kind kind = Kind::Null;
  YamlPlace place;
  std::string text;     ///< scalar
  bool quoted = false;  ///< scalar in quotes, or one tagged !!str: a text whatever it looks like
  std::vector<YamlValue> items;
  std::vector<YamlEntry> entries;  ///< map, in the order of the text; keys are unique

  /// The value under `key`; null when this is no map or has no such key.
  const YamlValue* find(const std::string& key) const;
  YamlValue* find(const std::string& key);

  /// "\"twenty\"", "20", "a list", "a map", "nothing": for messages, on one line.
  std::string shown() const;
};

struct YamlEntry {
  std::string key;
  YamlPlace place;
  YamlValue value;
};

/// One YAML document. Aliases are replaced by what they stand for. Throws InputError, with place, for text that is not
/// YAML or not text at all, several documents, duplicate keys, keys that are not plain scalars, foreign tags, and
/// values nested or repeated without bound.
YamlValue parse_yaml(const std::string& text, const std::shared_ptr<const YamlSource>& source);

/// `over` laid on top of `base`: maps merge, everything else replaces; a null takes the place of what was there.
void merge_yaml(YamlValue& base, YamlValue over);

/// `text` in double quotes on one line for a message: what cannot be printed is escaped, what is long is cut.
std::string quoted(const std::string& text);

/// Returns `text` with each capital of ASCII replaced by its small letter.
std::string lower_case(std::string text);

/// Whether `text` has characters that end a line or do not print. Keys and words have none.
bool has_control_characters(const std::string& text);

}  // namespace meshtrain
