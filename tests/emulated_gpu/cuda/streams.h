#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// Streams of the emulated GPU, for code that computes on it: kernels, LibTorch's operators, NCCL.
namespace meshtrain::emulated {

// Work runs on threads of the device. Only they, and the threads that OpenMP starts for them, have access to its
// memory. Any other thread that touches the memory crashes the process, if the CPU has protection keys.

/// Gives `work` to `stream` and returns when it is complete. Throws what `work` throws. During a capture of the stream,
/// adds it to the graph and does not run it.
void run(cudaStream_t stream, std::function<void()> work);

/// Gives `work` to `stream` and returns. A thread of the stream runs it after all earlier work, deliberately late. An
/// exception becomes the device's error (cudaErrorUnknown, with a line on stderr). During a capture of the stream, adds
/// it to the graph and does not run it.
void give(cudaStream_t stream, std::function<void()> work);

/// Calls give() for kernels, which are late sometimes.
void launch(cudaStream_t stream, std::function<void()> work);

bool is_captured(cudaStream_t stream);

/// Runs `work` on a thread of the device at once, not ordered with any stream, and returns when it is complete. Throws
/// what `work` throws.
void run_beside_streams(const std::function<void()>& work);

}  // namespace meshtrain::emulated
