#include "mesh/device/half_precision.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "mesh/device/meta_device.h"

namespace meshtrain {
namespace {

/// Asks an operator of LibTorch for what it can do here; false when LibTorch is built without oneDNN and so without it.
bool answer_of(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  return found && found->typed<bool()>().call();
}

/// Returns true when this processor multiplies bf16 itself, so that oneDNN need not widen it first.
bool has_bf16_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

}  // namespace

bool onednn_multiplies(at::ScalarType dtype) {
  static const bool bf16 = answer_of("mkldnn::_is_mkldnn_bf16_supported");
  static const bool fp16 = answer_of("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == at::kBFloat16 ? bf16 : dtype == at::kHalf && fp16;
}

bool multiplied_in_fp32(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  if (!c10::isReducedFloatingType(dtype) || !is_host(tensor.device())) return false;
  return !onednn_multiplies(dtype) || (dtype == at::kBFloat16 && !has_bf16_instructions());
}

}  // namespace meshtrain
