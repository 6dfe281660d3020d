#pragma once

#include <string>
#include <vector>

namespace meshtrain::emulated {

/// From here on each operator of meshtrain:: that has a sibling for CUDA is computed by that sibling, on tensors of the
/// CPU, but for those whose first tensor is in fp64: the CPU's own sibling computes them. It runs with threads forward,
/// backward and shuffled, and throws c10::Error where
///   - not every run gives the same bits;
///   - anything but the tensors that the schema calls mutable has changed in the memory of any of its tensors;
///   - the Meta sibling gives results of other shapes, strides or dtypes.
void replace_cuda();

/// Those that have not been called since.
std::vector<std::string> not_called();

}  // namespace meshtrain::emulated
