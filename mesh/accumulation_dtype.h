#pragma once

#include <c10/core/ScalarType.h>

namespace meshtrain {

/// In what sums over elements of `dtype` are computed: fp64 for fp64, fp32 for everything else.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace meshtrain
