#pragma once

namespace meshtrain::emulated {

/// Sets every __shared__ variable of the kernels in this program or library to NaNs (integers to -1). Needs their
/// symbols: throws std::runtime_error without them.
void forget_shared_memory();

}  // namespace meshtrain::emulated
