#pragma once

#include <stdexcept>
#include <string>

#include "runtime/text/jinja/parser.h"

namespace meshtrain::testing {

/// Throws "AT: REASON", where AT is a byte of the source.
[[noreturn]] inline void fail_in_template(size_t at, const std::string& reason) {
  throw std::runtime_error(std::to_string(at) + ": " + reason);
}

inline const jinja::FailAt kFailInTemplate = fail_in_template;

/// Parses a normalised source.
inline jinja::Body parsed(const std::string& source) {
  return jinja::parse(source, kFailInTemplate);
}

}  // namespace meshtrain::testing
