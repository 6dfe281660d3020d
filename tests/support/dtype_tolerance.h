#pragma once

#include <c10/core/ScalarType.h>

namespace meshtrain::testing {

/// A dtype, and the allowed error of its results against fp64.
struct DtypeTolerance {
  c10::ScalarType dtype;
  double tolerance;
};

}  // namespace meshtrain::testing
