#include <algorithm>

#include "devices.h"
#include "errors.h"
#include "observer.h"
#include "state.h"

namespace meshtrain::emulated {

CUstream_st* add_stream(unsigned flags, int priority);

namespace {

constexpr int kHighest = -5, kLowest = 0;

/// Checks the argument of cudaStreamSynchronize and cudaStreamQuery.
cudaError_t check_question(cudaStream_t handle, const char* call, CUstream_st*& stream) {
  {
    const Lock lock(lock_of_streams());
    stream = find_stream(handle, lock);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return spoil(*stream->capture, cudaErrorStreamCaptureUnsupported, call);
    if (const cudaError_t error = refuse_implicit(*stream, call, lock); error != cudaSuccess) return error;
  }
  return refuse_while_capturing(call);
}

}  // namespace
}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  if ((flags & ~cudaStreamNonBlocking) != 0) return tell(cudaErrorInvalidValue);
  *stream = add_stream(flags, std::clamp(priority, kHighest, kLowest));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr || stream->is_legacy) return tell(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return tell(spoil(*stream->capture, cudaErrorStreamCaptureUnsupported, __func__));
  wait_until_passed({stream, stream->given}, lock);
  stream->is_destroyed = true;
  stream->changed.notify_all();
  lock.unlock();
  if (stream->thread.joinable()) stream->thread.join();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = check_question(handle, __func__, stream); error != cudaSuccess) return tell(error);
  Lock lock(lock_of_streams());
  push_implicit_waits(*stream, lock);
  wait_until_passed({stream, stream->given}, lock);
  observe("synchronise", __func__);
  return tell(device_error());
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = check_question(handle, __func__, stream); error != cudaSuccess) return tell(error);
  const Lock lock(lock_of_streams());
  push_implicit_waits(*stream, lock);
  if (device_error() != cudaSuccess) return tell(device_error());
  return tell(stream->is_idle() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Lock lock(lock_of_streams());
  const CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  const Lock lock(lock_of_streams());
  const CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  if (const cudaError_t error = refuse_while_capturing(__func__); error != cudaSuccess) return tell(error);
  Lock lock(lock_of_streams());
  const int device = use_current_device();
  for (const CUstream_st* const stream : streams_of(device, lock)) {
    // Nobody can wait for work in a capture, in any mode.
    if (stream->capture != nullptr) {
      return tell(spoil(*stream->capture, cudaErrorStreamCaptureUnsupported, __func__));
    }
  }
  wait_for_device(device, lock);
  observe("synchronise", __func__);
  return tell(device_error());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return tell(try_give(stream, [function, data] { function(data); }));
}

}  // extern "C"
