#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mesh/backends/nccl/options.h"
#include "mesh/base/wording.h"
#include "mesh/device/cuda/device_graph.h"
#include "mesh/device/memory.h"
#include "mesh/group.h"
#include "mesh/layout.h"

namespace meshtrain {

/// The device and the transport that a recipe requests.
struct DeviceRequest {
  enum class Kind { Auto, Cpu, Cuda };
  enum class Transport { Auto, Mpi, Nccl };

  Kind kind = Kind::Auto;
  Transport transport = Transport::Auto;
  std::string allocator = {};  ///< settings of a GPU's allocator: CudaPlugin::set_allocator()
  NcclBuffers nccl_buffers = NcclBuffers::Off;
  bool two_queues = false;  ///< NcclOptions::two_queues
};

/// The device that a process computes on, and what belongs to it.
struct DeviceContext {
  at::Device device = at::kCPU;
  Group world;              ///< the same ranks, with collectives for tensors of the device too
  std::string description;  ///< "cuda, NVIDIA H100 80GB HBM3 (sm_90), 79.2 GiB on the first of 4 ranks, through nccl"
  /// Set on a GPU, unless ranks communicate through the host, which a graph cannot record.
  std::function<std::unique_ptr<DeviceGraph>()> make_graph = {};
  std::function<DevicePeak()> peak = {};  ///< of a GPU; null on a CPU
  /// Returns the bytes of the GPU's memory that are free for this rank, 0 when that is not known; null on a CPU.
  std::function<int64_t()> free_memory = {};
  /// One line for people on why device: auto is the CPU, on rank 0 if its machine has an NVIDIA driver; else empty.
  std::string fallback = {};
};

/// Finds the device of each rank of `world` and what they communicate through: NCCL where each rank has a GPU of its
/// own, else host memory and MPI. auto is cuda where each rank has a GPU of its own, else cpu, and `fallback` says why;
/// it looks for a driver before it opens anything. Every rank calls it with the same request. Throws InputError, the
/// same on all ranks, one line, when the request cannot be met.
DeviceContext connect_devices(const DeviceRequest& request, const Group& world);

}  // namespace meshtrain
