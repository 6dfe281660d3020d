#pragma once

#include <string>

#include "runtime/text/jinja/value.h"

namespace meshtrain::jinja {

/// Returns value | name(arguments), as Jinja's own filters compute it, and transformers' tojson. Throws Failure for a
/// filter that does not exist here.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);

}  // namespace meshtrain::jinja
