#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// Streams of the emulated GPU, for code that computes on it: kernels, LibTorch's operators, NCCL.
namespace meshtrain::emulated {

/// Runs `work` in this thread after all earlier work of `stream`, and returns when it is complete. Throws what `work`
/// throws. During a capture of the stream, adds it to the graph and does not run it.
void run(cudaStream_t stream, std::function<void()> work);

/// Gives `work` to `stream` and returns. A thread of the stream runs it after all earlier work, deliberately late. An
/// exception becomes the device's error (cudaErrorUnknown, with a line on stderr). During a capture of the stream, adds
/// it to the graph and does not run it.
void give(cudaStream_t stream, std::function<void()> work);

/// Calls give() for kernels, which are late sometimes.
void launch(cudaStream_t stream, std::function<void()> work);

bool is_captured(cudaStream_t stream);

/// Permission for this thread to read and write memory of the device, while this object lives; run(), give() and a
/// graph's launch hold one during `work`. A host that touches the memory without it crashes, if the CPU has protection
/// keys.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace meshtrain::emulated
