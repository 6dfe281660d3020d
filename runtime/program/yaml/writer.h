#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "runtime/program/yaml/rule.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {

/// The archive that writes our structs as YAML: every key that is allowed.
class Writer {
 public:
  template <class T>
  void field(const std::string& key, const T& value, const Rule& rule = {}) {
    if (!rule.refused.empty()) return;
    text_ += indent_ + key + ": " +
             (is_minus_one(value) && !rule.minus_one.empty() ? rule.minus_one : scalar_text(value)) + "\n";
  }

  template <class Body>
  void map(const std::string& key, const Body& body) {
    text_ += indent_ + key + ":\n";
    indent_ += "  ";
    body(*this);
    indent_.resize(indent_.size() - 2);
  }

  template <class T>
  void section(const std::string& key, T& value, const std::string& /*shorthand*/ = "") {
    map(key, [&](Writer& inner) { fields(inner, value); });
  }

  template <class T>
  void section(const std::string& key, std::optional<T>& value, const std::string& /*shorthand*/ = "") {
    if (!value) {
      text_ += indent_ + key + ": null\n";
    } else {
      section(key, *value);
    }
  }

  template <class T>
  void list(const std::string& key, std::vector<T>& values, const std::type_identity_t<T>& /*item*/) {
    text_ += indent_ + key + (values.empty() ? ": []\n" : ":\n");
    for (T& value : values) {
      text_ += indent_ + "  -\n";
      indent_ += "    ";
      fields(*this, value);
      indent_.resize(indent_.size() - 4);
    }
  }

  template <class T>
  void field_or_list(const std::string& key, const int64_t& value, const Rule& rule, std::vector<T>& values) {
    values.empty() ? field(key, value, rule) : list(key, values, T{});
  }

  template <class Action>
  void when_reading(const Action&) {}
  template <class Action>
  void when_complete(const Action&) {}

  const std::string& text() const { return text_; }

 private:
  static bool is_minus_one(const std::optional<int64_t>& value) { return value == -1; }
  template <class T>
  static bool is_minus_one(const T&) {
    return false;
  }

  std::string text_;
  std::string indent_;
};

}  // namespace meshtrain
