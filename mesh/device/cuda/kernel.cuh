#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "mesh/device/cuda/element.h"

// Code that kernels share: elements read and written 16 bytes at a time, sums over the threads of a row, launches that
// are checked and as large as the device.
namespace meshtrain::cuda {

constexpr int kWarp = 32;

/// The number of elements in 16 bytes.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float wide(float x) {
  return x;
}
__device__ __forceinline__ float wide(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float wide(__half x) {
  return __half2float(x);
}

template <class T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float x) {
  return __float2half_rn(x);
}

/// Returns x rounded as if stored as a T.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return wide(narrow<T>(x));
}

template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};

/// N elements as they come from memory, in words of 16 bytes, or of all N where those are fewer. Aligned so.
template <class T, int N>
struct Pack {
  static constexpr int kEach = N < kVector<T> ? N : kVector<T>;  // elements of a word
  static constexpr int kWords = N / kEach;
  using Type = typename Word<kEach* static_cast<int>(sizeof(T))>::Type;
  static_assert(N % kEach == 0);

  Type words[kWords];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Type*>(from)[i];
  }
  __device__ __forceinline__ void store(T* to) const {
    // The compiler would take a word apart again into what it was put together from.
#pragma unroll
    for (int i = 0; i < kWords; ++i) __stwb(reinterpret_cast<Type*>(to) + i, words[i]);
  }
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = Type{};
  }
  __device__ __forceinline__ void to(float (&values)[N]) const {
    T elements[N];
    memcpy(elements, words, sizeof(elements));
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = wide(elements[i]);
  }
  __device__ __forceinline__ void from(const float (&values)[N]) {
    T elements[N];
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i] = narrow<T>(values[i]);
    memcpy(words, elements, sizeof(elements));
  }
};

/// Sums over `width` neighbouring lanes, a power of two: each of them gets the sum. All lanes of a warp take part.
__device__ __forceinline__ float sum_of_lanes(float value, int width = kWarp) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}
__device__ __forceinline__ double sum_of_lanes(double value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}
__device__ __forceinline__ float max_of_lanes(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    value = value != value || value > other ? value : other;  // a NaN stays
  }
  return value;
}

/// Sums over the threads of a row, threadIdx.x, in a fixed order: either they are full warps and blockDim.y is 1, or
/// they are part of one warp and a power of two. Every thread of the block takes part in each sum and gets it.
class RowSum {
 public:
  /// `shared`: [2][32], to be used by nothing else.
  __device__ explicit RowSum(float (*shared)[kWarp]) : shared_(shared) {}

  __device__ float operator()(float value) {
    if (blockDim.x <= kWarp) return sum_of_lanes(value, static_cast<int>(blockDim.x));
    value = sum_of_lanes(value);
    float* sums = shared_[turn_];
    turn_ ^= 1;  // a thread that is one sum ahead writes to the other half
    const unsigned lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    if (lane == 0) sums[threadIdx.x / kWarp] = value;
    __syncthreads();
    return sum_of_lanes(lane < warps ? sums[lane] : 0.0f);
  }

 private:
  float (*shared_)[kWarp];
  int turn_ = 0;
};

// Host side.

/// Calls of<T>() with the type that `element` stands for.
template <class Of>
void for_element(Element element, Of of) {
  switch (element) {
    case Element::Float:
      return of.template operator()<float>();
    case Element::BFloat16:
      return of.template operator()<__nv_bfloat16>();
    case Element::Half:
      return of.template operator()<__half>();
  }
}

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// kernel<<<grid, block, 0, stream>>>(arguments...), checked. Written so that any C++ compiler reads it: tests/emulated
/// has kernels run on the CPU.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
            Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  check(cudaGetLastError(), name);
}

inline int64_t multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

inline int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Returns the number of blocks for `pieces` pieces of work, over which the kernel loops: at most `per_multiprocessor`
/// a multiprocessor. At least 1.
inline unsigned grid_for(int64_t pieces, int64_t per_multiprocessor) {
  return static_cast<unsigned>(std::clamp<int64_t>(pieces, 1, multiprocessors() * per_multiprocessor));
}

inline int power_of_two_from(int64_t n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

/// Returns true when all of these may be read 16 bytes at a time.
template <class... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace meshtrain::cuda
