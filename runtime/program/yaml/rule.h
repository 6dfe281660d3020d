#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// A struct that is written as a map of YAML is described once, by a function template `fields(archive, value)` in
/// namespace meshtrain. It is called with an archive that reads (Reader), writes (Writer) or lists the keys
/// (KeyLister); each archive offers
///
///   field(key, value, rule)   one key
///   map(key, body)            a map of further keys; `body` gets the archive inside of it
///   section(key, value, shorthand)   a map that is one of our structs, described by its own `fields`; a single value
///                             in its place is for the key `shorthand`, if there is one
///   list(key, values, item)   a list of such maps; the keys that they leave out are as in `item`
///   field_or_list(key, value, rule, values)   one number, or in its place a list of maps
///   when_reading(action)      defaults and demands that depend on several keys; ignored unless reading
///   when_complete(action)     likewise, of values that are required: ignored too when one of them is missing
namespace meshtrain {

/// The demands on one value. Bounds apply to a number, or to each number of a list; choices to a word, to each word of
/// a list, and to the keys of a map.
struct Rule {
  bool required = false;
  std::optional<double> least = {};
  std::optional<double> above = {};
  std::optional<double> most = {};
  std::optional<double> below = {};
  std::vector<std::string> choices = {};
  std::string minus_one = {};  ///< of a whole number, or of those of a map: a word for -1
  std::string expected = {};   ///< of a map of whole numbers: its description in messages, "a map of ..."
  std::string refused = {};    ///< why other keys forbid this one; it is then neither required nor written
};

/// The words for the values of a type, in the order of messages: {"cosine", Schedule::Cosine}, ...
template <class T>
using WordsOf = std::vector<std::pair<std::string, T>>;

/// Returns the word for `value`; empty when it has none.
template <class T>
std::string word_of(const WordsOf<T>& words, const std::type_identity_t<T>& value) {
  for (const auto& [word, known] : words) {
    if (known == value) return word;
  }
  return "";
}

/// Returns the value for `word`, which must be one of `words`.
template <class T>
T value_of(const WordsOf<T>& words, const std::string& word) {
  for (const auto& [known, value] : words) {
    if (known == word) return value;
  }
  throw std::out_of_range("no value for the word " + word);
}

/// Visits the key of a value that is written as a word.
template <class Archive, class T>
void word_field(Archive& archive, const std::string& key, T& value, const std::type_identity_t<WordsOf<T>>& words,
                Rule rule = {}) {
  std::string text = word_of(words, value);
  for (const auto& known : words) rule.choices.push_back(known.first);
  archive.field(key, text, rule);
  for (const auto& [word, known] : words) {
    if (word == text) value = known;
  }
}

}  // namespace meshtrain
