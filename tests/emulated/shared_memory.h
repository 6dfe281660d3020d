#pragma once

namespace meshtrain::emulated {

/// Sets every __shared__ variable of the kernels in this program or library to NaNs (of integers -1). It has to have
/// its symbols: otherwise throws std::runtime_error.
void forget_shared_memory();

}  // namespace meshtrain::emulated
