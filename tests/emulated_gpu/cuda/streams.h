#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// Streams of the emulated GPU, for what computes on it: kernels, LibTorch's operators, NCCL.
namespace meshtrain::emulated {

/// Runs `work` on `stream` after everything the stream was given before, in this thread, and returns when it is done.
/// Throws what `work` throws. Where the stream is being captured it is kept for the graph and not run.
void run(cudaStream_t stream, std::function<void()> work);

/// Gives `work` to `stream` and returns: it is run after everything the stream was given before, on a thread of the
/// stream's own, later than one would like. What it throws is the device's error from then on (cudaErrorUnknown, with
/// a line on stderr). Where the stream is being captured it is kept for the graph and not run.
void give(cudaStream_t stream, std::function<void()> work);

/// give() for kernels, which are late now and then.
void launch(cudaStream_t stream, std::function<void()> work);

bool is_captured(cudaStream_t stream);

/// Memory of the device may be read and written by this thread while one of these lives; run(), give() and a graph's
/// launch have one around `work`. Elsewhere a host that touches it dies, where the CPU has protection keys.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace meshtrain::emulated
