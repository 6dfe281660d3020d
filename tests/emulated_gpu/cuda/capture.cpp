#include "capture.h"

#include <algorithm>
#include <set>
#include <string>

#include "errors.h"
#include "state.h"

namespace meshtrain::emulated {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

/// Returns the captures in progress. Call under the lock of the streams.
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto& active = *new std::vector<std::shared_ptr<Capture>>;
  return active;
}

/// Returns true when all work of the capture's streams comes before the origin's last nodes.
bool is_joined(const Capture& capture) {
  std::set<cudaGraphNode_t> before;
  std::vector<cudaGraphNode_t> open = capture.origin->last_nodes;
  while (!open.empty()) {
    const cudaGraphNode_t node = open.back();
    open.pop_back();
    if (before.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const CUstream_st* stream) {
    return std::all_of(stream->last_nodes.begin(), stream->last_nodes.end(),
                       [&](cudaGraphNode_t node) { return before.contains(node); });
  });
}

void end(Capture& capture) {
  for (CUstream_st* const stream : capture.streams) {
    stream->capture = nullptr;
    stream->last_nodes.clear();
  }
  capture.has_ended = true;
  std::erase_if(captures(), [&](const auto& other) { return other.get() == &capture; });
}

}  // namespace

cudaError_t keep(CUstream_st& stream, std::function<void()> work, const Lock&) {
  Capture& capture = *stream.capture;
  if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
  auto& nodes = capture.graph->nodes;
  nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{std::move(work), stream.last_nodes}));
  stream.last_nodes = {nodes.back().get()};
  return cudaSuccess;
}

cudaError_t spoil(Capture& capture, cudaError_t error, const char* call) {
  if (!capture.has_ended) capture.is_invalid = true;
  return refuse(error, std::string(call) + " during a capture, which is spoiled by it");
}

cudaError_t refuse_while_capturing(const char* call) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const Lock lock(lock_of_streams());
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures()) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        is_own ? capture->mode != cudaStreamCaptureModeRelaxed
               : capture->mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal;
    if (forbids) result = spoil(*capture, cudaErrorStreamCaptureUnsupported, call);
  }
  return result;
}

cudaError_t refuse_implicit(const CUstream_st& stream, const char* call, const Lock&) {
  if (!stream.is_legacy) return cudaSuccess;
  for (const auto& capture : captures()) {
    for (const CUstream_st* const captured : capture->streams) {
      if (captured->device == stream.device && captured->is_blocking()) {
        return spoil(*capture, cudaErrorStreamCaptureImplicit, call);
      }
    }
  }
  return cudaSuccess;
}

}  // namespace meshtrain::emulated

using namespace meshtrain::emulated;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr) return tell(cudaErrorInvalidValue);
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  static unsigned long long last = 0;
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  if (stream->is_legacy) return refuse(cudaErrorStreamCaptureUnsupported, "capture of the default stream");
  if (stream->capture != nullptr) return refuse(cudaErrorIllegalState, "capture of a stream that is captured already");
  const auto capture = std::make_shared<Capture>();
  capture->id = ++last;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->streams = {stream};
  capture->graph = std::make_unique<CUgraph_st>();
  stream->capture = capture;
  stream->last_nodes.clear();
  captures().push_back(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  if (graph == nullptr) return tell(cudaErrorInvalidValue);
  *graph = nullptr;
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return refuse(cudaErrorIllegalState, "the end of a capture that did not begin");
  if (capture->origin != stream) return tell(spoil(*capture, cudaErrorStreamCaptureUnmatched, __func__));
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return tell(spoil(*capture, cudaErrorStreamCaptureWrongThread, __func__));
  }
  const bool joined = is_joined(*capture);
  end(*capture);
  if (capture->is_invalid) return tell(cudaErrorStreamCaptureInvalidated);
  if (!joined) return refuse(cudaErrorStreamCaptureUnjoined, "a stream in the capture has work that none waits for");
  *graph = capture->graph.release();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (status == nullptr) return tell(cudaErrorInvalidValue);
  const Lock lock(lock_of_streams());
  CUstream_st* const stream = find_stream(handle, lock);
  if (stream == nullptr) return tell(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_implicit(*stream, __func__, lock); error != cudaSuccess) return tell(error);
  *status = cudaStreamCaptureStatusNone;
  if (stream->capture == nullptr) return cudaSuccess;
  const Capture& capture = *stream->capture;
  *status = capture.is_invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  if (id != nullptr) *id = capture.id;
  if (graph != nullptr) *graph = capture.graph.get();
  if (nodes != nullptr) *nodes = stream->last_nodes.data();
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = stream->last_nodes.size();
  return cudaSuccess;
}

}  // extern "C"
