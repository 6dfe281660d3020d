#pragma once

#include <string>
#include <vector>

#include "tests/null_gpu/kernels.h"

namespace meshtrain::null_gpu {

/// Returns the pointers among the parameters of a kernel with this demangled name: "void f<float, 4>(float const*,
/// long)". A pointer's alignment is its element's size. For kernels of meshtrain that read N elements at once it is
/// min(N x element size, 16 bytes).
std::vector<PointerParameter> pointer_parameters(const std::string& name);

}  // namespace meshtrain::null_gpu
