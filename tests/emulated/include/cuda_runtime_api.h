#pragma once

#include <cstddef>
#include <cstring>

#include "tests/emulated/machine.h"
#include "tests/emulated/stream.h"

// The part of CUDA that meshtrain's kernels and their callers use, without CUDA's own headers. A launch is complete
// when it returns, and throws its errors.

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaError_t { cudaSuccess };

inline const char* cudaGetErrorString(cudaError_t) {
  return "no error";
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
/// So few that kernels have to loop over their work.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 3;
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t count, cudaStream_t stream) {
  meshtrain::emulated::in_stream(stream, [=] { std::memset(to, byte, count); });
  return cudaSuccess;
}
