#pragma once

#include <memory>

#include "mesh/backend.h"

namespace meshtrain {

enum class StagedTensors {
  Devices,  ///< tensors of other devices than the CPU
  All,      ///< tensors of the CPU as well: for tests
};

/// Decorates a backend that takes host tensors: tensors of a device are copied to pinned host memory on the current
/// stream, and the collective begins when the copies are complete, so issue() blocks until earlier work of the stream
/// is done. wait() copies the result back on the current stream of the thread that waits. So any number of ranks may
/// share one device. Without windows. Groups split from it are staged too.
std::shared_ptr<Backend> staged(std::shared_ptr<Backend> host, StagedTensors stage = StagedTensors::Devices);

}  // namespace meshtrain
