#include "mesh/device/host_rows.h"

#include <ATen/Version.h>

#include <string>

namespace meshtrain {
namespace {

#if defined(__x86_64__)

LaneSet set_of(bool bf16) {
  const std::string capability = at::get_cpu_capability();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (capability == "AVX512" && has_avx512 && (!bf16 || __builtin_cpu_supports("avx512bf16"))) return LaneSet::Avx512;
  const bool is_used = capability == "AVX512" || capability == "AVX2";
  return is_used && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? LaneSet::Avx2 : LaneSet::None;
}

#else

LaneSet set_of(bool) {
  return LaneSet::None;
}

#endif

}  // namespace

LaneSet lane_set(at::ScalarType dtype) {
  static const LaneSet of_fp32 = set_of(/*bf16=*/false), of_bf16 = set_of(/*bf16=*/true);
  return dtype == at::kFloat ? of_fp32 : dtype == at::kBFloat16 ? of_bf16 : LaneSet::None;
}

}  // namespace meshtrain
