#pragma once

#include "mesh/group.h"
#include "runtime/program/forecast/machine.h"

namespace meshtrain {

/// Measures copies between each rank's GPU `device` and pinned memory, in one direction at a time, and AdamW's update
/// on the host, of fp32 values with their bf16 copies; all ranks at once. The disk is not measured. Returns the same
/// rates on all ranks. Every rank must call it. Throws std::runtime_error when the host has no room.
HostRates measure_host(const Group& world, at::Device device);

}  // namespace meshtrain
