#pragma once

#include <string>

#include "runtime/jinja/value.h"

namespace meshtrain::jinja {

/// Returns value | name(arguments), as Jinja's own filters compute it, and transformers' tojson. Throws Failure for a
/// filter that does not exist here.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);

/// Returns whether value is name(arguments). Throws Failure for a test that does not exist.
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);

/// Returns left SIGN right of numbers, texts and lists, with Python's meaning. Throws Failure for other operands, a
/// division by zero and whole numbers beyond 64 bits.
Value arithmetic(const std::string& sign, const Value& left, const Value& right, Budget& budget);

}  // namespace meshtrain::jinja
