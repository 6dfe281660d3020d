#include <chrono>
#include <set>

#include "devices.h"
#include "errors.h"
#include "observer.h"
#include "state.h"

namespace meshtrain::emulated {
namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::set<cudaEvent_t>& events() {
  static std::set<cudaEvent_t>& known = *new std::set<cudaEvent_t>;
  return known;
}

bool is_known(cudaEvent_t event, const Lock&) {
  return events().contains(event);
}

/// Checks the argument of cudaEventQuery and cudaEventSynchronize.
cudaError_t check_question(cudaEvent_t event, const char* call) {
  {
    const Lock lock(lock_of_streams());
    if (!is_known(event, lock)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return spoil(*event->capture, cudaErrorCapturedEvent, call);
  }
  return refuse_while_capturing(call);
}

cudaError_t record(cudaEvent_t event, CUstream_st& stream, const Lock& lock) {
  if (stream.device != event->device) {
    return refuse(cudaErrorInvalidResourceHandle, "an event is recorded on a stream of another device");
  }
  if (stream.capture != nullptr) {
    if (stream.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream.capture;
    event->nodes = stream.last_nodes;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->nodes.clear();
  event->time = std::make_shared<int64_t>(now());
  if (!stream.is_idle())
    push(
        stream, [time = event->time] { *time = now(); }, Lateness::None, lock);
  event->mark = {&stream, stream.given};
  return cudaSuccess;
}

/// Adds `stream` to the event's capture.
cudaError_t join(CUstream_st& stream, CUevent_st& event) {
  Capture& capture = *event.capture;
  if (capture.has_ended) return refuse(cudaErrorCapturedEvent, "a stream waits for an event of a capture that is over");
  if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture != nullptr && stream.capture != event.capture) {
    spoil(*stream.capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent");
    return spoil(capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent");
  }
  if (stream.is_legacy) return spoil(capture, cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent");
  if (stream.capture == nullptr) {
    stream.capture = event.capture;
    stream.last_nodes.clear();
    capture.streams.push_back(&stream);
  }
  std::set<cudaGraphNode_t> nodes(stream.last_nodes.begin(), stream.last_nodes.end());
  nodes.insert(event.nodes.begin(), event.nodes.end());
  stream.last_nodes.assign(nodes.begin(), nodes.end());
  return cudaSuccess;
}

}  // namespace
}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (device_count() == 0) return tell(cudaErrorNoDevice);
  const Lock lock(lock_of_streams());
  *event = new CUevent_st;
  (*event)->device = use_current_device();
  (*event)->flags = flags;
  events().insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(lock_of_streams());
  if (!is_known(event, lock)) return tell(cudaErrorInvalidResourceHandle);
  events().erase(event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  if (flags != cudaEventRecordDefault) return refuse(cudaErrorNotSupported, "events of a graph's outside");
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr || !is_known(event, lock)) return tell(cudaErrorInvalidResourceHandle);
  if (stream->capture == nullptr) {
    if (const cudaError_t error = refuse_implicit(*stream, __func__, lock); error != cudaSuccess) return tell(error);
    push_implicit_waits(*stream, lock);
  }
  if (const cudaError_t error = record(event, *stream, lock); error != cudaSuccess) return tell(error);
  return tell(device_error());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr || !is_known(event, lock)) return tell(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) return tell(join(*stream, *event));
  if (stream->capture != nullptr) {
    if (stream->capture->is_invalid) return tell(cudaErrorStreamCaptureInvalidated);
    if (event->mark.stream == nullptr) return cudaSuccess;
    return tell(spoil(*stream->capture, cudaErrorStreamCaptureIsolation, __func__));
  }
  if (const cudaError_t error = refuse_implicit(*stream, __func__, lock); error != cudaSuccess) return tell(error);
  push_wait(*stream, event->mark, lock);
  return tell(device_error());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = check_question(event, __func__); error != cudaSuccess) return tell(error);
  const Lock lock(lock_of_streams());
  if (device_error() != cudaSuccess) return tell(device_error());
  return tell(event->mark.is_passed() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = check_question(event, __func__); error != cudaSuccess) return tell(error);
  Lock lock(lock_of_streams());
  const Mark mark = event->mark;
  wait_until_passed(mark, lock);
  observe("synchronise", __func__);
  return tell(device_error());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock(lock_of_streams());
  for (const cudaEvent_t event : {start, end}) {
    if (!is_known(event, lock)) return tell(cudaErrorInvalidResourceHandle);
    if ((event->flags & cudaEventDisableTiming) != 0 || event->mark.stream == nullptr) {
      return tell(cudaErrorInvalidResourceHandle);
    }
    if (!event->mark.is_passed()) return tell(cudaErrorNotReady);
  }
  *milliseconds = static_cast<float>(static_cast<double>(*end->time - *start->time) / 1e6);
  return cudaSuccess;
}

}  // extern "C"
