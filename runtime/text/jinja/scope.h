#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// The variables of a template, a loop's round or a macro's call, and those around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer = nullptr) : outer_(std::move(outer)) {}

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
      for (const auto& [key, value] : scope->values_) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }

  void set(const std::string& name, Value value) {
    for (auto& [key, old] : values_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    values_.emplace_back(name, std::move(value));
  }

  /// Forgets all variables: a macro among them keeps its scope, and so itself, alive.
  void clear() { values_.clear(); }

 private:
  std::shared_ptr<Scope> outer_;
  std::vector<std::pair<std::string, Value>> values_;
};

}  // namespace meshtrain::jinja
