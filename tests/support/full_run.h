#pragma once

#include <cstdlib>

namespace meshtrain::testing {

/// Returns true under `tools/test --full`: tests then run completely, not as a sample or on fewer ranks.
inline bool is_full_run() {
  return std::getenv("MESHTRAIN_FULL_MATRIX") != nullptr;
}

}  // namespace meshtrain::testing
