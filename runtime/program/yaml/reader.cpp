#include "runtime/program/yaml/reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "mesh/base/error.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/program/yaml/unknown_keys.h"

namespace meshtrain {
namespace {

const YamlValue kEmptyMap = [] {
  YamlValue map;
  map.kind = YamlValue::Kind::Map;
  return map;
}();

/// Parses all of `text` as a number; a leading + is allowed. Returns what is wrong with it.
template <class T>
std::errc parse_number(const std::string& text, T& value) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') ++begin;
  const auto [last, error] = std::from_chars(begin, end, value);
  return last == end ? error : std::errc::invalid_argument;
}

/// Returns the end of a message about a quoted value. `is_right`: the value would be valid without the quotes.
std::string quotes_advice(const YamlValue& given, bool is_right) {
  return given.quoted && is_right ? ", because the quotes make it a string: remove them" : "";
}

}  // namespace

Reader::Reader(const YamlValue& root, const KnownKeys& keys, Files files)
    : map_(&root),
      location_{root.location.source},
      keys_(&keys),
      files_(files),
      missing_(std::make_shared<std::vector<std::string>>()) {
  refuse_unknown_keys(root, keys);
}

const YamlValue* Reader::find(const std::string& key) const {
  const YamlValue* given = map_->find(key);
  return given == nullptr || given->kind == YamlValue::Kind::Null ? nullptr : given;
}

bool Reader::has_items(const std::string& key) const {
  const YamlValue* given = find(key);
  return given != nullptr && !(given->kind == YamlValue::Kind::List && given->items.empty());
}

bool Reader::is_word(const std::string& key, const std::string& word) const {
  const YamlValue* given = find(key);
  return given != nullptr && given->kind == YamlValue::Kind::Scalar && given->text == word;
}

Reader Reader::enter(const std::string& key) const {
  const YamlValue* given = find(key);
  return enter(key, given == nullptr ? kEmptyMap : *given);
}

Reader Reader::enter(const std::string& key, const YamlValue& map) const {
  if (map.kind != YamlValue::Kind::Map) fail_at(map.location, path_of(key), map.shown() + " is not a map of keys");
  Reader inner = *this;
  inner.map_ = &map;
  inner.path_ = path_of(key);
  if (map.location.source) inner.location_ = map.location;
  return inner;
}

void Reader::fail(const std::string& key, const std::string& what) const {
  fail_at(location_of(key), path_of(key), what);
}

void Reader::miss(const std::string& key, const std::string& what) const {
  missing_->push_back(described(location_of(key), path_of(key), what));
}

void Reader::refuse_missing() const {
  if (missing_->empty()) return;
  if (missing_->size() == 1) throw InputError(missing_->front());
  std::string text = std::to_string(missing_->size()) + " keys are missing:";
  for (const std::string& key : *missing_) text += "\n  " + key;
  throw InputError(text);
}

const YamlLocation& Reader::location_of(const std::string& key) const {
  const YamlValue* given = map_->find(key);  // a null has a location too
  return given == nullptr ? location_ : given->location;
}

void Reader::fail_item(const std::string& path, size_t item, const std::string& key, const std::string& what) const {
  const YamlValue* given = map_;
  for (size_t begin = 0; given != nullptr && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    given = given->find(path.substr(begin, end - begin));
    begin = end + 1;
  }
  const YamlValue* each = given != nullptr && item < given->items.size() ? &given->items[item] : given;
  const YamlValue* value = each != nullptr && !key.empty() ? each->find(key) : nullptr;
  const YamlValue* found = value != nullptr ? value : each;
  const std::string of_item = key.empty() ? "" : "[" + std::to_string(item) + "]." + key;
  fail_at(found == nullptr ? location_ : found->location, path_of(path) + of_item, what);
}

void Reader::fail_settled(const std::string& key, const std::string& given, const std::string& settled) const {
  fail(key, given + " differs from the " + settled + " of " + owner_);
}

std::string Reader::described(const YamlLocation& location, const std::string& path, const std::string& what) const {
  // The name of an option that sets only this key already contains the key.
  const bool said = location.source && location.source->option_key == path;
  return location.text() + ": " + (said ? "" : path + ": ") + what;
}

void Reader::fail_at(const YamlLocation& location, const std::string& path, const std::string& what) const {
  refuse_missing();  // this error may follow from a missing key
  throw InputError(described(location, path, what));
}

const std::string& Reader::word(const std::string& key, const YamlValue& given) const {
  if (given.kind != YamlValue::Kind::Scalar) fail(key, given.shown() + " is not a single word");
  if (has_control_characters(given.text)) fail(key, given.shown() + " has control characters");
  return given.text;
}

void Reader::check_choice(const YamlLocation& location, const std::string& path, const Rule& rule,
                          const std::string& word) const {
  if (rule.choices.empty()) return;
  for (const std::string& choice : rule.choices) {
    if (word == choice) return;
  }
  const ForeignAnswer known = keys_->foreign_value(path, word);
  const auto longer = std::find_if(rule.choices.begin(), rule.choices.end(),
                                   [&](const std::string& choice) { return choice.starts_with(word + "_"); });
  const std::string meant = longer != rule.choices.end() ? *longer : nearest(word, rule.choices);
  fail_at(location, path,
          quoted(word) + " is not one of " + joined(rule.choices) +
              (known           ? known.here()
               : meant.empty() ? ""
                               : "; did you mean \"" + meant + "\"?"));
}

void Reader::check_bounds(const std::string& key, const YamlValue& given, const Rule& rule, double value) const {
  const auto refuse = [&](const std::string& bound, double limit) {
    fail_at(given.location, path_of(key),
            given.text + " is impossible: it must be " + bound + " " + scalar_text(limit));
  };
  if (rule.least && value < *rule.least) refuse("at least", *rule.least);
  if (rule.above && value <= *rule.above) refuse("above", *rule.above);
  if (rule.most && value > *rule.most) refuse("at most", *rule.most);
  if (rule.below && value >= *rule.below) refuse("below", *rule.below);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule, int64_t& value) const {
  if (given.kind == YamlValue::Kind::Scalar && !rule.minus_one.empty() && given.text == rule.minus_one) {
    value = -1;
    return;
  }
  const bool plain = given.kind == YamlValue::Kind::Scalar && !given.quoted;
  const std::errc error = plain ? parse_number(given.text, value) : std::errc::invalid_argument;
  if (error == std::errc::result_out_of_range) {
    using Limits = std::numeric_limits<int64_t>;
    const bool below = given.text.starts_with('-');
    const std::optional<double>& bound = below ? rule.least : rule.most;
    fail_at(given.location, path_of(key),
            given.text + " is impossible: it must be at " + (below ? "least " : "most ") +
                (bound ? scalar_text(*bound) : scalar_text(below ? Limits::min() : Limits::max())));
  }
  if (error != std::errc()) {
    fail_at(given.location, path_of(key),
            given.shown() + " is not a whole number" + (rule.minus_one.empty() ? "" : " nor " + rule.minus_one) +
                quotes_advice(given, parse_number(given.text, value) == std::errc()));
  }
  check_bounds(key, given, rule, static_cast<double>(value));
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule, double& value) const {
  const bool is_number =
      given.kind == YamlValue::Kind::Scalar && parse_number(given.text, value) == std::errc() && std::isfinite(value);
  if (!is_number || given.quoted) {
    fail_at(given.location, path_of(key), given.shown() + " is not a number" + quotes_advice(given, is_number));
  }
  check_bounds(key, given, rule, value);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule&, bool& value) const {
  const bool is_true = given.text == "true" || given.text == "True" || given.text == "TRUE";
  const bool is_false = given.text == "false" || given.text == "False" || given.text == "FALSE";
  if (given.kind != YamlValue::Kind::Scalar || given.quoted || (!is_true && !is_false)) {
    fail(key, given.shown() + " is neither true nor false" + quotes_advice(given, is_true || is_false));
  }
  value = is_true;
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule, std::string& value) const {
  value = word(key, given);
  check_choice(given.location, path_of(key), rule, value);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule&, std::filesystem::path& value) const {
  if (word(key, given).empty()) fail(key, "is an empty path: write null for none");
  value = (given.location.source->folder / given.text).lexically_normal();
  if (!value.has_filename()) value = value.parent_path();
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule,
                  std::array<double, 2>& value) const {
  if (given.kind != YamlValue::Kind::List || given.items.size() != value.size()) {
    fail(key, given.shown() + (given.kind == YamlValue::Kind::List ? " of " + std::to_string(given.items.size()) : "") +
                  " is not a list of two numbers" + quotes_advice(given, given.text.starts_with('[')));
  }
  for (size_t i = 0; i < value.size(); ++i) read(key, given.items[i], rule, value[i]);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule,
                  std::vector<std::string>& value) const {
  if (given.kind != YamlValue::Kind::List) {
    fail(key, given.shown() + " is not a list" + quotes_advice(given, given.text.starts_with('[')));
  }
  value.clear();
  for (const YamlValue& item : given.items) {
    if (item.kind != YamlValue::Kind::Scalar) fail(key, item.shown() + " is not a single word");
    check_choice(item.location, path_of(key), rule, item.text);
    value.push_back(item.text);
  }
}

template <class T>
void Reader::read_numbers(const std::string& key, const YamlValue& given, const Rule& rule,
                          std::vector<T>& value) const {
  if (given.kind != YamlValue::Kind::List) {
    fail(key, given.shown() + " is not a list of numbers" + quotes_advice(given, given.text.starts_with('[')));
  }
  value.clear();
  for (const YamlValue& item : given.items) read(key, item, rule, value.emplace_back());
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<int64_t>& value) const {
  read_numbers(key, given, rule, value);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<double>& value) const {
  read_numbers(key, given, rule, value);
}

void Reader::read(const std::string& key, const YamlValue& given, const Rule& rule,
                  std::map<std::string, int64_t>& value) const {
  if (given.kind != YamlValue::Kind::Map) {
    fail(key, given.shown() + " is not " + rule.expected + quotes_advice(given, given.text.starts_with('{')));
  }
  value.clear();
  for (const YamlEntry& entry : given.entries) {
    check_choice(entry.location, path_of(key), {.choices = rule.choices}, entry.key);
    if (entry.value.kind == YamlValue::Kind::Null) continue;
    const std::string axis = key + "." + entry.key;
    int64_t size = 0;
    read(axis, entry.value, {.least = rule.least, .most = rule.most, .minus_one = rule.minus_one}, size);
    value[entry.key] = size;
  }
}

}  // namespace meshtrain
