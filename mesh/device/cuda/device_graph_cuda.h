#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "mesh/device/cuda/device_graph.h"

namespace meshtrain::cuda {

/// Returns a CUDA graph on `gpu`. The current stream must not be the default one while it is recorded. Throws
/// std::invalid_argument when `gpu` is negative, as it is for a device without an index.
std::unique_ptr<DeviceGraph> make_graph(int gpu);

/// Returns whether `stream` is being captured for a graph, also for one that is spoiled: none of its work is run.
bool is_captured(cudaStream_t stream);

}  // namespace meshtrain::cuda
