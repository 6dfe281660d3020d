#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace meshtrain::null_gpu {

/// Adds work to a stream that only notes "what detail", in each replay of a graph again.
cudaError_t give(cudaStream_t stream, const char* what, const std::string& detail);

/// Returns what is wrong with memory that the GPU reads or writes, as "at an address that ..."; empty when nothing is.
std::string memory_fault(const void* data, size_t bytes, int alignment);

}  // namespace meshtrain::null_gpu
