#pragma once

#include <string>
#include <vector>

namespace meshtrain::emulated {

/// Replaces each operator of meshtrain:: that has a CUDA version: that version computes it from now on, on CPU tensors,
/// except when its first tensor is fp64, which the CPU's version computes. Runs it with threads forward, backward and
/// shuffled, and throws c10::Error when
///   - runs give different bits;
///   - memory of its tensors has changed outside the tensors that the schema calls mutable;
///   - the Meta version returns results of other shapes, strides or dtypes.
void replace_cuda();

/// Returns the replaced operators that have not been called since.
std::vector<std::string> not_called();

}  // namespace meshtrain::emulated
