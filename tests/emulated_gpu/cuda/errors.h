#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace meshtrain::emulated {

/// Returns `error`, and stores it as this thread's last error unless it is success.
cudaError_t tell(cudaError_t error);

/// Prints a line to stderr, because CUDA would give no reason. Returns tell(error).
cudaError_t refuse(cudaError_t error, const std::string& why);

/// Makes the device unusable: its work has thrown `why`.
void fail_device(const std::string& why);

/// Returns cudaErrorUnknown after fail_device().
cudaError_t device_error();

}  // namespace meshtrain::emulated
