#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/program/yaml/rule.h"

namespace meshtrain {

struct YamlValue;

/// A key that a map of YAML can have.
struct KnownKey {
  std::string path;       ///< "train.steps"
  std::string kind;       ///< of its values, for people: "a whole number"
  Rule rule;              ///< the demands on them when the other keys have their defaults
  std::string shorthand;  ///< of a map of keys: the key that a value in the place of the map is for; empty: none
};

/// The answer to a word of another system.
struct ForeignAnswer {
  enum class Kind { None, Name, Option, Sentence };

  Kind kind = Kind::None;
  std::string
      text;  ///< Name: our key or value; Option: that of a command; Sentence: the rest of one that begins with "here"

  explicit operator bool() const { return kind != Kind::None; }
  /// Returns "; here it is optimizer.learning_rate"; an empty text without an answer.
  std::string here() const;
};

/// A word that people know from other systems in the place of a key.
struct ForeignWord {
  std::string
      word;  ///< "optimizer.lr", or "lr" in any map; "train.precision=bfloat16", or "dtype=int32"; in small letters
  ForeignAnswer answer;
};

/// The keys that a map of YAML, and the maps in it, can have. A map is named by its path: "train"; an entry of a list
/// by "data.mixture[0]"; the outermost map by "".
class KnownKeys {
 public:
  /// `keys`: of all maps, as KeyLister lists them. `words`: the first that fits counts; complete paths go first.
  explicit KnownKeys(std::vector<KnownKey> keys, std::vector<ForeignWord> words = {})
      : keys_(std::move(keys)), words_(std::move(words)) {}

  const std::vector<KnownKey>& all() const { return keys_; }

  /// Returns true when the map at `path` can have `key`, whatever else it has.
  bool has(const std::string& path, const std::string& key) const;
  /// Returns the key at `path`, with or without indices of entries; null when there is none.
  const KnownKey* find(const std::string& path) const;

  /// Returns `; here it is optimizer.learning_rate` for an unknown key in the map at `path` that is a word of another
  /// system, else `; did you mean "steps"?`: the nearest key of that map, or else the complete path of a key of that
  /// name, or near it, in another. Empty when there is none.
  std::string suggestion(const std::string& path, const std::string& key) const;
  /// Returns the answer when `value` of the key at `path`, or a key in its map, is a word of another system.
  ForeignAnswer foreign_value(const std::string& path, const std::string& value) const;
  /// Returns the answer to a word of another system in the place of `key`. `path` may be another system's name for one
  /// of our maps, such as "training".
  ForeignAnswer foreign_word(const std::string& path, const std::string& key) const;

  /// Returns `path` itself, or the one key whose path ends with it when `path` begins with no known key:
  /// "activation_checkpointing" is train.activation_checkpointing.
  std::string complete(const std::string& path) const;
  /// Replaces each single value in `map` that stands in the place of a map of keys and has a shorthand by the map of
  /// that one key: activation_checkpointing: full becomes {mode: full}. `path`: of `map`.
  void expand_shorthands(YamlValue& map, const std::string& path = "") const;

 private:
  std::vector<KnownKey> keys_;
  std::vector<ForeignWord> words_;
};

}  // namespace meshtrain
