#pragma once

#include <string>
#include <vector>

namespace meshtrain::testing {

/// Returns 200 texts of 5,000 characters of many scripts, a million: those of mixed_texts() in
/// fixtures/generate_shapes.py.
std::vector<std::string> mixed_texts();

}  // namespace meshtrain::testing
