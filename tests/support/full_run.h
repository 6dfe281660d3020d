#pragma once

#include <cstdlib>

namespace meshtrain::testing {

/// True under `tools/test --full`: what otherwise runs as a sample, or on fewer ranks, then runs whole.
inline bool is_full_run() {
  return std::getenv("MESHTRAIN_FULL_MATRIX") != nullptr;
}

}  // namespace meshtrain::testing
