#pragma once

#include <string>

#include "runtime/checkpoint/manifest.h"

namespace meshtrain::testing {

/// manifest.json as meshtrain wrote it in format 1: each file repeats the names, dtypes and shapes of its tensors.
std::string format_1_text(const Manifest& manifest);

}  // namespace meshtrain::testing
