#pragma once

#include <random>
#include <string>

#include "mesh/group.h"

namespace meshtrain::testing {

/// Returns the ranks that this test program was started with; one when it runs alone. Tests that need several work for
/// any number. In a world of several ranks a failed expectation ends all of them, with rank and message.
const Group& world();

/// Returns standard-normal values, the same on every rank for the same seed.
at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble);

/// Returns max|a-b| / max|b|, computed in fp64; the error measure of rule 9 of arithmetic.
double relative_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace meshtrain::testing
