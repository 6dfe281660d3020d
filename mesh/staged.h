#pragma once

#include <memory>

#include "mesh/backend.h"

namespace meshtrain {

enum class StagedTensors {
  Devices,  ///< tensors of other devices than the CPU
  All,      ///< those of the CPU as well: for tests
};

/// Decorates a backend that takes host tensors: those of a device are copied to host memory, pinned, on the current
/// stream; the collective begins when they are there, so issue() blocks until what came before on the stream is done.
/// wait() copies the result back on the current stream of the thread that waits. So any number of ranks may share one
/// device. There are no windows. Groups split from it are staged too.
std::shared_ptr<Backend> staged(std::shared_ptr<Backend> host, StagedTensors stage = StagedTensors::Devices);

}  // namespace meshtrain
