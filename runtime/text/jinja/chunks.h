#pragma once

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// The filters batch(linecount, fill_with) and slice(slices, fill_with): lists of so many elements, and so many lists.
Value batch(const Value& value, const Arguments& arguments, Budget& budget);
Value slice(const Value& value, const Arguments& arguments, Budget& budget);

}  // namespace meshtrain::jinja
