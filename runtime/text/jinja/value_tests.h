#pragma once

#include <string>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Returns whether value is name(arguments). Throws Failure for a test that does not exist.
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);

}  // namespace meshtrain::jinja
