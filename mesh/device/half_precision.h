#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Returns the dtype in which sums over elements of `dtype` are computed: fp64 for fp64, fp32 for everything else.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns true when LibTorch multiplies elements of `dtype`, bf16 or fp16, by oneDNN: where this processor has
/// AVX-512 for bf16, AVX512-FP16 for fp16, or AVX-NE-CONVERT for both, and ONEDNN_MAX_CPU_ISA allows them.
bool onednn_multiplies(at::ScalarType dtype);

/// Returns true when `tensor` has halves that this processor multiplies faster in fp32 (docs/benchmarks.md). Where
/// oneDNN does not multiply them, LibTorch's own loops run at a tenth of the speed of fp32; without AVX512_BF16 oneDNN
/// multiplies bf16 at a third of it.
bool multiplied_in_fp32(const at::Tensor& tensor);

}  // namespace meshtrain
