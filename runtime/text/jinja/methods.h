#pragma once

#include <string>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Returns true when Python's type of `value` has such a method, one that would change it included.
bool has_method(const Value& value, const std::string& name);

/// Returns value.name(arguments). Throws Failure for methods that change a value, which transformers refuses in
/// templates, and for those that are not supported.
Value call_method(const Value& value, const std::string& name, const Arguments& arguments, Budget& budget);

}  // namespace meshtrain::jinja
