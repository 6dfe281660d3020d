#pragma once

#include <string>
#include <vector>

#include "tests/null_gpu/kernels.h"

namespace meshtrain::null_gpu {

/// Returns the pointers among the parameters of a kernel, from its demangled name, as "void f<float, 4>(float const*,
/// long)". A pointer's alignment is its element's size; for kernels of meshtrain that read N elements of a type at
/// once, the size of N or 16 bytes, whichever is less.
std::vector<PointerParameter> pointer_parameters(const std::string& name);

}  // namespace meshtrain::null_gpu
