#pragma once

namespace meshtrain::emulated {

/// Sets every __shared__ variable of this program's kernels to NaNs (of integers -1). The program has to have its
/// symbols: otherwise throws std::runtime_error.
void forget_shared_memory();

}  // namespace meshtrain::emulated
