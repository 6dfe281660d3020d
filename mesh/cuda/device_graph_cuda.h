#pragma once

#include <memory>

#include "mesh/cuda/device_graph.h"

namespace meshtrain::cuda {

/// A CUDA graph on `gpu`. The current stream must not be the default one while it is recorded.
std::unique_ptr<DeviceGraph> make_graph(int gpu);

}  // namespace meshtrain::cuda
