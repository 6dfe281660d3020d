#pragma once

#include <optional>
#include <string>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Returns Python's str(value), which is what a template prints: "True", "None", "[1, 'a']"; nothing for an undefined
/// value. Throws Failure for a macro or another object without a text.
std::string to_text(const Value& value, Budget& budget);
/// Returns Python's repr(value).
std::string to_repr(const Value& value, Budget& budget);

/// The arguments of Python's json.dumps().
struct JsonStyle {
  std::optional<std::string> indent = {};  ///< of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

/// Returns json.dumps(value, ...) as transformers' tojson calls it. Throws Failure for an undefined value.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace meshtrain::jinja
