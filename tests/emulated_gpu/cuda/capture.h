#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

/// A piece of work in a graph.
struct CUgraphNode_st {
  std::function<void()> work;
  std::vector<cudaGraphNode_t> after;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  ///< in the order in which they were added
};

namespace meshtrain::emulated {

/// A capture in progress, or one that has ended and that events recorded in it still refer to.
struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  CUstream_st* origin = nullptr;
  std::vector<CUstream_st*> streams;
  std::unique_ptr<CUgraph_st> graph;
  bool is_invalid = false;
  bool has_ended = false;
};

/// Adds `work` to the graph that `stream` is captured for.
cudaError_t keep(CUstream_st& stream, std::function<void()> work, const std::unique_lock<std::mutex>& lock);

/// Handles calls that a stream or event in a capture does not allow: invalidates the capture and prints a line to
/// stderr.
cudaError_t spoil(Capture& capture, cudaError_t error, const char* call);

/// Handles calls that CUDA names potentially unsafe, such as cudaMalloc: refuses them when this thread captures, unless
/// its mode or the capture's is relaxed, and when both this thread's mode and another thread's capture are global.
cudaError_t refuse_while_capturing(const char* call);

/// Refuses the default stream while a blocking stream is captured.
cudaError_t refuse_implicit(const CUstream_st& stream, const char* call, const std::unique_lock<std::mutex>& lock);

}  // namespace meshtrain::emulated
