#pragma once

#include <string>

#include "runtime/training/checkpoint/manifest.h"

namespace meshtrain::testing {

/// Returns manifest.json in format 1, as meshtrain wrote it: each file repeats the names, dtypes and shapes of its
/// tensors.
std::string format_1_text(const Manifest& manifest);

}  // namespace meshtrain::testing
