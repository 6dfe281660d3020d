#pragma once

#include <map>
#include <string>

#include "runtime/text/jinja/renderer.h"

namespace meshtrain::jinja {

/// Returns the functions that every template has: range, dict, namespace, joiner, raise_exception and
/// strftime_now. They must not outlive `renderer`.
std::map<std::string, Value> global_functions(Renderer& renderer);

/// A {% set %} target of its own: namespace(...).
class Namespace final : public Object {
 public:
  const char* type() const override { return "a namespace"; }
  std::optional<Value> attribute(const std::string& name) const override;
  void set(const std::string& name, Value value) { values_[name] = std::move(value); }
  void clear() { values_.clear(); }

 private:
  std::map<std::string, Value> values_;
};

}  // namespace meshtrain::jinja
