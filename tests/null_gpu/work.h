#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace meshtrain::null_gpu {

/// Gives a stream work that only notes "what detail" when it is done, once for each replay of a graph.
cudaError_t give(cudaStream_t stream, const char* what, const std::string& detail);

/// Returns what is wrong with memory that the GPU reads or writes, as "at an address that ..."; empty when nothing is.
std::string memory_fault(const void* data, size_t bytes, int alignment);

}  // namespace meshtrain::null_gpu
