#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "mesh/backend.h"

namespace meshtrain {

/// Reduces `count` elements of `parts[0..ranks)`, in that order, into `output`, which may be one of the parts.
using ReduceKernel = void (*)(const std::byte* const* parts, int ranks, std::byte* output, int64_t count);

/// Returns the kernel for a dtype: halves are accumulated in fp32 and rounded once; a NaN wins a maximum. nullptr for a
/// dtype that is not reduced.
ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce op);

/// The kernels of a reduction in several steps: partial_kernel() leaves its result in the dtype that it is accumulated
/// in, and rounding_kernel() reduces such parts, one or more, to `dtype`.
at::ScalarType dtype_of_sums(at::ScalarType dtype);
ReduceKernel partial_kernel(at::ScalarType dtype, Reduce op);
ReduceKernel rounding_kernel(at::ScalarType dtype, Reduce op = Reduce::Sum);

}  // namespace meshtrain
