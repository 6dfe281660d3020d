#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/rule.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/program/yaml/value.h"

namespace meshtrain {

/// The archive that fills our structs from one YAML map, strictly. Absent and null keys leave a value as it was. Keys
/// that no map can have are refused, all at once, before any key is read, so that a misspelt key is reported as unknown
/// and not as missing. Missing keys are refused all at once too, by refuse_missing() or by the first other error. Every
/// error is an InputError "LOCATION: KEY PATH: what is wrong".
class Reader {
 public:
  enum class Files { Open, LeaveAlone };  ///< the treatment of files that the text names

  /// Reads from `root`, the outermost map, which must outlive the reader. `keys`: all keys that it and the maps in it
  /// can have. Throws InputError about all others.
  Reader(const YamlValue& root, const KnownKeys& keys, Files files);

  template <class T>
  void field(const std::string& key, T& value, const Rule& rule = {});
  template <class Body>
  void map(const std::string& key, const Body& body);
  template <class T>
  void section(const std::string& key, T& value, const std::string& shorthand = "");
  template <class T>
  void section(const std::string& key, std::optional<T>& value, const std::string& shorthand = "");
  template <class T>
  void list(const std::string& key, std::vector<T>& values, const std::type_identity_t<T>& item);
  template <class T>
  void field_or_list(const std::string& key, int64_t& value, const Rule& rule, std::vector<T>& values);
  template <class Action>
  void when_reading(const Action& action) {
    action(*this);
  }
  /// Calls `action`, which computes with values of required keys, unless one of these is missing.
  template <class Action>
  void when_complete(const Action& action) {
    if (missing_->empty()) action(*this);
  }
  /// Throws InputError about all required keys that are missing. Call when every key is read.
  void refuse_missing() const;

  bool opens_files() const { return files_ == Files::Open; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  /// Returns true when `key` exists and is not an empty list.
  bool has_items(const std::string& key) const;
  /// Returns true when the value of `key` is this word.
  bool is_word(const std::string& key, const std::string& word) const;
  /// Fixes the values from here on: a key may repeat a value, and one that differs is refused in the name of `owner`.
  /// An empty owner fixes nothing.
  void settle(std::string owner) { owner_ = std::move(owner); }
  /// Returns true after settle() with an owner.
  bool is_settled() const { return !owner_.empty(); }
  /// Notes that `key`, which is absent, is required, and why for people: "must be given".
  void miss(const std::string& key, const std::string& what) const;
  /// Requires no key from here on.
  void require_nothing() { requires_ = false; }
  /// Throws InputError about a key of this map, with the location of its value, or of the map when the key is absent.
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;
  /// Throws InputError about item `item`, from 0, of the list at `path` ("train.freeze") in this map; in a list of maps
  /// about the item's `key`.
  [[noreturn]] void fail_item(const std::string& path, size_t item, const std::string& key,
                              const std::string& what) const;

 private:
  const YamlValue* find(const std::string& key) const;  // null when absent or null
  const YamlLocation& location_of(const std::string& key) const;
  std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  Reader enter(const std::string& key) const;
  Reader enter(const std::string& key, const YamlValue& map) const;
  [[noreturn]] void fail_settled(const std::string& key, const std::string& given, const std::string& settled) const;

  // Each of these reads the value of `key` or throws.
  void read(const std::string& key, const YamlValue& given, const Rule& rule, int64_t& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, double& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, bool& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::string& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::filesystem::path& value) const;
  template <class T>
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::optional<T>& value) const {
    T found{};
    read(key, given, rule, found);
    value = found;
  }
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::array<double, 2>& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<std::string>& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<int64_t>& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<double>& value) const;
  template <class T>
  void read_numbers(const std::string& key, const YamlValue& given, const Rule& rule, std::vector<T>& value) const;
  void read(const std::string& key, const YamlValue& given, const Rule& rule,
            std::map<std::string, int64_t>& value) const;
  const std::string& word(const std::string& key, const YamlValue& given) const;
  void check_choice(const YamlLocation& location, const std::string& path, const Rule& rule,
                    const std::string& word) const;
  void check_bounds(const std::string& key, const YamlValue& given, const Rule& rule, double value) const;
  std::string described(const YamlLocation& location, const std::string& path, const std::string& what) const;
  [[noreturn]] void fail_at(const YamlLocation& location, const std::string& path, const std::string& what) const;

  const YamlValue* map_;
  YamlLocation location_;  // of the map, for messages about absent keys; without one, that of the map around it
  std::string path_;       // "train", "data.mixture[0]": the path of this map
  const KnownKeys* keys_;
  Files files_;
  std::string owner_;
  bool requires_ = true;
  std::shared_ptr<std::vector<std::string>>
      missing_;  // of the readers of all maps: "LOCATION: KEY PATH: must be given"
};

template <class T>
void Reader::field(const std::string& key, T& value, const Rule& rule) {
  const YamlValue* given = find(key);
  if (given == nullptr) {
    if (rule.required && rule.refused.empty() && owner_.empty() && requires_) miss(key, "must be given");
    return;
  }
  if (!rule.refused.empty()) fail(key, rule.refused);
  T found = value;
  read(key, *given, rule, found);
  if (!owner_.empty() && found != value) fail_settled(key, scalar_text(found), scalar_text(value));
  value = std::move(found);
}

template <class Body>
void Reader::map(const std::string& key, const Body& body) {
  Reader inner = enter(key);
  body(inner);
}

template <class T>
void Reader::section(const std::string& key, T& value, const std::string&) {
  map(key, [&](Reader& inner) { fields(inner, value); });
}

template <class T>
void Reader::list(const std::string& key, std::vector<T>& values, const std::type_identity_t<T>& item) {
  const YamlValue* given = find(key);
  if (given == nullptr) return;
  if (given->kind != YamlValue::Kind::List) fail(key, given->shown() + " is not a list");
  std::vector<T> found;
  for (const YamlValue& each : given->items) {
    Reader inner = enter(key + "[" + std::to_string(found.size()) + "]", each);
    fields(inner, found.emplace_back(item));
  }
  values = std::move(found);
}

template <class T>
void Reader::field_or_list(const std::string& key, int64_t& value, const Rule& rule, std::vector<T>& values) {
  const YamlValue* given = find(key);
  if (given == nullptr || given->kind != YamlValue::Kind::List) {
    values.clear();
    return field(key, value, rule);
  }
  list(key, values, T{});
  if (values.empty()) fail(key, "is an empty list: give a number, or maps in it");
}

template <class T>
void Reader::section(const std::string& key, std::optional<T>& value, const std::string&) {
  if (find(key) == nullptr) return;
  if (!owner_.empty() && !value) fail_settled(key, "a map", "none");
  T found = value.value_or(T{});
  map(key, [&](Reader& inner) { fields(inner, found); });
  value = std::move(found);
}

}  // namespace meshtrain
