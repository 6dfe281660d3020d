#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
// One copy for all blocks, because they run one after another. shared_memory.cpp finds the variables by the tag in
// their symbols' names. (A separate section would do, but g++ forgets it in templates.)
#define __shared__ static __attribute__((abi_tag("emulated_shared")))
// As many nops before the kernel as threads: a function can keep a number nowhere else, and machine.cpp compares it
// with the blocks that are launched. (+ 0: g++ 12 needs a sum, or a literal.)
#define __launch_bounds__(threads, ...) __attribute__((patchable_function_entry(threads + 0, threads + 0)))

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> given(std::forward<Arguments>(arguments)...);
  meshtrain::emulated::in_stream(config->stream, [kernel, grid = config->gridDim, block = config->blockDim, given] {
    meshtrain::emulated::run(reinterpret_cast<const void*>(kernel), grid, block, [&] { std::apply(kernel, given); });
  });
  return cudaSuccess;
}

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  meshtrain::emulated::meet_block(where);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu,
                       const std::source_location& where = std::source_location::current()) {
  meshtrain::emulated::meet_warp(mask, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance,
                  const std::source_location& where = std::source_location::current()) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits =
      meshtrain::emulated::exchange(mask, bits, meshtrain::emulated::lane() ^ static_cast<unsigned>(distance), where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Words that are read and written at once; each access must be aligned to their size.
template <int kCount>
struct alignas(kCount * sizeof(unsigned)) EmulatedWord {
  unsigned parts[kCount];

  EmulatedWord() = default;
  EmulatedWord(const EmulatedWord& other) { *this = other; }
  EmulatedWord& operator=(const EmulatedWord& other) {
    meshtrain::emulated::check_aligned(&other, sizeof(EmulatedWord));
    meshtrain::emulated::check_aligned(this, sizeof(EmulatedWord));
    std::memcpy(parts, other.parts, sizeof(parts));
    return *this;
  }
};
using uint2 = EmulatedWord<2>;
using uint4 = EmulatedWord<4>;

template <class T>
void __stwb(T* to, const T& value) {
  meshtrain::emulated::check_aligned(to, sizeof(T));
  std::memcpy(static_cast<void*>(to), &value, sizeof(T));
}

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
/// Computes ex2.approx of a product rounded to fp32, which makes large arguments inexact.
inline float __expf(float x) {
  return exp2f(x * 1.442695041f);
}
/// Returns 0 for divisors above 2^126, as documented; not a number for infinite dividends.
inline float __fdividef(float x, float y) {
  return std::fabs(y) > 0x1p126f ? x * 0.0f : x / y;
}
