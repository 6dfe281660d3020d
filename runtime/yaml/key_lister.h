#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/yaml/rule.h"

namespace meshtrain {

/// The archive that lists the paths of all keys that our structs can have: "train.steps".
class KeyLister {
 public:
  template <class T>
  void field(const std::string& key, const T&, const Rule& rule = {}) {
    names_.push_back(prefix_ + key);
    if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>) {
      for (const std::string& axis : rule.choices) names_.push_back(prefix_ + key + "." + axis);
    }
  }

  template <class Body>
  void map(const std::string& key, const Body& body) {
    names_.push_back(prefix_ + key);
    const std::string outer = prefix_;
    prefix_ += key + ".";
    body(*this);
    prefix_ = outer;
  }

  template <class T>
  void section(const std::string& key, T& value) {
    map(key, [&](KeyLister& inner) { fields(inner, value); });
  }

  template <class T>
  void section(const std::string& key, std::optional<T>&) {
    T value;
    section(key, value);
  }

  template <class T>
  void list(const std::string& key, std::vector<T>&, const std::type_identity_t<T>&) {
    T value;
    section(key, value);
  }

  template <class Action>
  void when_reading(const Action&) {}

  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::vector<std::string> names_;
  std::string prefix_;
};

}  // namespace meshtrain
