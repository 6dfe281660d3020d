#pragma once

#include <cstdint>
#include <string>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Returns left SIGN right of numbers, texts and lists, with Python's meaning. Throws Failure for other operands, a
/// division by zero and whole numbers beyond 64 bits.
Value arithmetic(const std::string& sign, const Value& left, const Value& right, Budget& budget);

/// Returns a % b with the sign of b. Throws Failure for a b of 0.
int64_t remainder(int64_t a, int64_t b);

}  // namespace meshtrain::jinja
