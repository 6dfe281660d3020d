#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "errors.h"
#include "memory.h"
#include "model.h"
#include "observer.h"
#include "state.h"

namespace meshtrain::emulated {
namespace {

/// The sides of a copy. Device memory belongs to the device, all other memory to the host.
struct Sides {
  bool from_device = false, to_device = false;
  bool is_pageable = false;  ///< true: one side is host memory that is not pinned
};

cudaError_t look_at(const void* target, const void* source, size_t bytes, cudaMemcpyKind kind, Sides& sides) {
  if (target == nullptr || source == nullptr) return refuse(cudaErrorInvalidValue, "a copy from or to nullptr");
  sides.from_device = device_of(source, bytes) >= 0;
  sides.to_device = device_of(target, bytes) >= 0;
  // Memory that begins on the device must end there.
  if ((!sides.from_device && device_of(source, 1) >= 0) || (!sides.to_device && device_of(target, 1) >= 0)) {
    return refuse(cudaErrorInvalidValue, "a copy of " + std::to_string(bytes) + " bytes goes beyond its allocation");
  }
  const bool asks_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool asks_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (asks_from != sides.from_device || asks_to != sides.to_device)) {
    return refuse(cudaErrorInvalidValue, "a copy of another kind than its memory");
  }
  sides.is_pageable =
      (!sides.from_device && !is_pinned(source, bytes)) || (!sides.to_device && !is_pinned(target, bytes));
  return cudaSuccess;
}

/// Copies of at most this many bytes count as single numbers, such as a step's loss and norm.
constexpr size_t kNumbers = 64;

void copy(void* target, const void* source, size_t bytes, const Sides& sides) {
  if (!model().computes && !sides.to_device && sides.from_device && bytes <= kNumbers) {
    std::memset(target, 0, bytes);
  } else {
    std::memmove(target, source, bytes);
  }
}

/// Gives `work` to the stream, or runs it: CUDA returns from copies with pageable memory when they are complete, or
/// when the memory may be used again.
cudaError_t give_or_run(cudaStream_t stream, bool is_synchronous, std::function<void()> work, const char* call) {
  if (!is_synchronous) return tell(try_give(stream, std::move(work)));
  {
    const Lock lock(lock_of_streams());
    CUstream_st* const known = find_stream(stream, lock);
    if (known == nullptr) return tell(cudaErrorInvalidResourceHandle);
    if (known->capture != nullptr) return tell(spoil(*known->capture, cudaErrorStreamCaptureUnsupported, call));
  }
  const cudaError_t error = try_run(stream, work);
  observe("synchronise", call);
  return tell(error);
}

}  // namespace
}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  Sides sides;
  if (const cudaError_t error = look_at(target, source, bytes, kind, sides); error != cudaSuccess) return error;
  return give_or_run(
      stream, sides.is_pageable, [=] { copy(target, source, bytes, sides); }, __func__);
}

cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  if (width > target_pitch || width > source_pitch) return tell(cudaErrorInvalidPitchValue);
  Sides sides, last;
  auto* const to = static_cast<std::byte*>(target);
  const auto* const from = static_cast<const std::byte*>(source);
  const size_t rows = height - 1;
  if (const cudaError_t error = look_at(to, from, width, kind, sides); error != cudaSuccess) return error;
  const cudaError_t error = look_at(to + rows * target_pitch, from + rows * source_pitch, width, kind, last);
  if (error != cudaSuccess) return error;
  return give_or_run(
      stream, sides.is_pageable || last.is_pageable,
      [=] {
        for (size_t row = 0; row < height; ++row) {
          std::memmove(to + row * target_pitch, from + row * source_pitch, width);
        }
      },
      __func__);
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  if (const cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, nullptr); error != cudaSuccess) {
    return error;
  }
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyPeerAsync(void* target, int target_device, const void* source, int source_device, size_t bytes,
                                cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (device_of(target, bytes) != target_device || device_of(source, bytes) != source_device) {
    return refuse(cudaErrorInvalidValue, "a copy between devices with memory that is not theirs");
  }
  return tell(try_give(stream, [=] { std::memmove(target, source, bytes); }));
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (device_of(data, bytes) < 0 && !is_pinned(data, bytes)) {
    return refuse(cudaErrorInvalidValue, "cudaMemset of " + std::to_string(bytes) + " bytes beyond an allocation");
  }
  return tell(try_give(stream, [=] { std::memset(data, value, bytes); }));
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

}  // extern "C"
