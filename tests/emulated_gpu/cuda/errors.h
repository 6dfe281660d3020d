#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace meshtrain::emulated {

/// Remembers `error` as this thread's last one, unless it is none, and returns it.
cudaError_t tell(cudaError_t error);

/// A line on stderr, for what CUDA would give no reason for; returns tell(error).
cudaError_t refuse(cudaError_t error, const std::string& why);

/// The device cannot be used any more: work that was given to it has thrown `why`.
void fail_device(const std::string& why);

/// cudaErrorUnknown after fail_device().
cudaError_t device_error();

}  // namespace meshtrain::emulated
