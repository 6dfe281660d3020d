#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/program/yaml/known_keys.h"
#include "runtime/program/yaml/rule.h"

namespace meshtrain {

/// The archive that lists all keys that our structs can have, by their paths: "train.steps".
class KeyLister {
 public:
  template <class T>
  void field(const std::string& key, const T&, const Rule& rule = {}) {
    keys_.push_back({prefix_ + key, kind_of<T>(), rule, ""});
    if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>) {
      for (const std::string& axis : rule.choices) {
        keys_.push_back(
            {prefix_ + key + "." + axis, "a whole number", {.least = rule.least, .minus_one = rule.minus_one}, ""});
      }
    }
  }

  template <class Body>
  void map(const std::string& key, const Body& body, const std::string& shorthand = "") {
    keys_.push_back({prefix_ + key, "a map of keys", {}, shorthand});
    const std::string outer = prefix_;
    prefix_ += key + ".";
    body(*this);
    prefix_ = outer;
  }

  template <class T>
  void section(const std::string& key, T& value, const std::string& shorthand = "") {
    map(
        key, [&](KeyLister& inner) { fields(inner, value); }, shorthand);
  }

  template <class T>
  void section(const std::string& key, std::optional<T>&, const std::string& shorthand = "") {
    T value;
    section(key, value, shorthand);
  }

  template <class T>
  void list(const std::string& key, std::vector<T>&, const std::type_identity_t<T>&) {
    T value;
    section(key, value);
    for (KnownKey& known : keys_) {
      if (known.path == prefix_ + key) known.kind = "a list of maps of keys";
    }
  }

  template <class T>
  void field_or_list(const std::string& key, const int64_t&, const Rule& rule, std::vector<T>& values) {
    list(key, values, T{});
    for (KnownKey& known : keys_) {
      if (known.path == prefix_ + key) known = {known.path, "a whole number, or a list of maps of keys", rule, ""};
    }
  }

  template <class Action>
  void when_reading(const Action&) {}
  template <class Action>
  void when_complete(const Action&) {}

  std::vector<KnownKey> take() { return std::move(keys_); }

 private:
  /// Returns the kind of values of this type, for people.
  template <class T>
  static std::string kind_of() {
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, std::optional<int64_t>>) return "a whole number";
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) return "a number";
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, std::string>) return "a word";
    if constexpr (std::is_same_v<T, std::filesystem::path>) return "a path";
    if constexpr (std::is_same_v<T, std::array<double, 2>>) return "a list of two numbers";
    if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of words";
    if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "a list of whole numbers";
    if constexpr (std::is_same_v<T, std::vector<double>>) return "a list of numbers";
    return "a map of sizes";
  }

  std::vector<KnownKey> keys_;
  std::string prefix_;
};

}  // namespace meshtrain
