#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/meta_device.h"

namespace meshtrain {

/// Returns the dtype in which sums over elements of `dtype` are computed: fp64 for fp64, fp32 for everything else.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns true when `tensor` has halves that this processor multiplies faster in fp32: LibTorch has fast products of
/// halves where oneDNN has them, with AVX-512 for bf16 and its instructions for fp16; elsewhere its own loops run at a
/// tenth of the speed of fp32 (docs/benchmarks.md).
inline bool multiplied_in_fp32(const at::Tensor& tensor) {
#if defined(__x86_64__)
  static const bool slow_bf16 = !__builtin_cpu_supports("avx512bw"), slow_fp16 = !__builtin_cpu_supports("avx512fp16");
  if (!is_host(tensor.device())) return false;
  return tensor.scalar_type() == at::kBFloat16 ? slow_bf16 : tensor.scalar_type() == at::kHalf && slow_fp16;
#else
  return false;
#endif
}

}  // namespace meshtrain
