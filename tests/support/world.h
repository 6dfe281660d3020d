#pragma once

#include <random>
#include <string>

#include "mesh/group.h"

namespace meshtrain::testing {

/// The ranks that this test program was started with: one when it runs alone. Tests that need several are written
/// for any number. A failed expectation in a world of several ends all of it, with rank and message.
const Group& world();

/// Standard-normal values, the same on every rank for the same seed. fp64 unless `dtype` says otherwise.
at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble);

/// max|a-b| / max|b|, both taken to fp64; the error measure of the design's rule 9.
double relative_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace meshtrain::testing
