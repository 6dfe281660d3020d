#pragma once

#include <c10/core/ScalarType.h>

namespace meshtrain::testing {

/// A dtype, and how far results in it may be from those in fp64 as the test measures it.
struct Precision {
  c10::ScalarType dtype;
  double tolerance;
};

}  // namespace meshtrain::testing
