#pragma once

#include <string>

#include "runtime/text/jinja/lexer.h"
#include "runtime/text/jinja/syntax.h"

namespace meshtrain::jinja {

/// Parses a normalised source. Calls `fail`, which must throw, when it is malformed, nested too deeply, or has a
/// statement of Jinja that reads other files (include, import, extends, block).
Body parse(const std::string& source, const FailAt& fail);

}  // namespace meshtrain::jinja
