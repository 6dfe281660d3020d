#pragma once

namespace meshtrain::emulated {

/// Throws unless the process has CUDA's run-time compiler, which cuDNN opens by its bare name to compile fused
/// attention.
void require_runtime_compiler();

}  // namespace meshtrain::emulated
