#include "runtime/program/launch/connect_devices.h"

#include <map>
#include <vector>

#include "mesh/agree.h"
#include "mesh/backends/nccl/nccl.h"
#include "mesh/base/error.h"
#include "mesh/device/cuda/checks.h"
#include "mesh/device/cuda/plugin.h"
#include "mesh/device/error_message.h"
#include "mesh/flight_recorder.h"
#include "mesh/host_map.h"
#include "mesh/staged.h"

namespace meshtrain {
namespace {

/// This rank's GPU; several ranks share one when a host has fewer GPUs than ranks.
struct Gpu {
  CudaPlugin* plugin = nullptr;
  int number = 0;
  int64_t num_sharers = 1;  // ranks that have it, at most
};

Gpu find_gpu(const DeviceRequest& request, const Group& world) {
  CudaPlugin& plugin = open_cuda_plugin();
  const int count = plugin.prepare();
  if (!request.allocator.empty()) plugin.set_allocator(request.allocator);
  const HostMap hosts = HostMap::of(world);
  const auto num_ranks = static_cast<int>(hosts.ranks_of(hosts.host_of(world.rank())).size());
  return {&plugin, hosts.local_rank(world.rank()) % count, (num_ranks + count - 1) / count};
}

/// A rank's GPU, as the driver names it, or why it has none.
struct Claim {
  std::string identity;
  std::string problem;
};

/// Returns an empty text when each rank has a GPU of its own, else what prevents it. Collective.
std::string missing_gpu(const Claim& claim, const Group& world) {
  const std::vector<std::string> identities = gather_texts(world, claim.identity);
  const std::vector<std::string> problems = gather_texts(world, claim.problem);
  std::map<std::string, size_t> owners;
  std::string missing;
  for (size_t rank = 0; rank < identities.size() && missing.empty(); ++rank) {
    const auto [owner, is_new] = owners.emplace(identities[rank], rank);
    if (identities[rank].empty()) {
      missing = "rank " + std::to_string(rank) + " has none" + (problems[rank].empty() ? "" : ": " + problems[rank]);
    } else if (!is_new) {
      missing = "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " share one";
    }
  }
  return broadcast_text(world, missing);
}

DeviceContext on_cpus(const Group& world, const std::string& reason = "") {
  DeviceContext device_context{at::kCPU, world, "cpu"};
  if (!reason.empty() && is_cuda_driver_there())
    device_context.fallback = "device: auto chooses the CPU, because " + reason;
  return device_context;
}

DeviceContext on_gpus(const Gpu& gpu, bool nccl, const DeviceRequest& request, const Group& world) {
  agree(world, [&] { gpu.plugin->use(gpu.number); });
  FlightRecorder::own().on_work([plugin = gpu.plugin](const char* work) { plugin->show_range(work); });
  DeviceContext device_context;
  device_context.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu.number));
  std::shared_ptr<Backend> backend;
  if (nccl) {
    backend = connect_nccl(world.backend(), {.user_buffers = request.nccl_buffers, .two_queues = request.two_queues});
    backend = record_flights(std::move(backend), FlightRecorder::own(), {"world"},
                             {world.ranks().begin(), world.ranks().end()});
  } else {
    backend = staged(world.backend());
  }
  device_context.world = Group(backend, world.name(), world.ranks(), world.coordinate_text());
  device_context.description = "cuda, " + gpu.plugin->describe(gpu.number);
  if (nccl || world.size() == 1) device_context.make_graph = [gpu] { return gpu.plugin->make_graph(gpu.number); };
  device_context.peak = [gpu] { return gpu.plugin->peak(gpu.number); };
  device_context.free_memory = [gpu] { return gpu.plugin->free_memory() / gpu.num_sharers; };
  if (world.size() > 1) {
    device_context.description += " on the first of " + std::to_string(world.size()) + " ranks, through " +
                                  (nccl ? "nccl" : "host memory and mpi");
  }
  return device_context;
}

}  // namespace

DeviceContext connect_devices(const DeviceRequest& request, const Group& world) {
  using Kind = DeviceRequest::Kind;
  using Transport = DeviceRequest::Transport;
  const bool needs_nccl = request.transport == Transport::Nccl, needs_gpu = request.kind == Kind::Cuda || needs_nccl;
  if (request.kind == Kind::Cpu) return on_cpus(world);
  Gpu gpu;
  Claim claim;
  if (needs_gpu) {
    agree(world, [&] { gpu = find_gpu(request, world); });
  } else if (is_cuda_driver_there()) {
    try {
      gpu = find_gpu(request, world);
    } catch (const CudaUnavailable& error) {
      claim.problem = error.reason();
    } catch (const std::exception& error) {
      claim.problem = message_of(error);
    }
  }
  if (gpu.plugin != nullptr) claim.identity = gpu.plugin->identity(gpu.number);
  const std::string missing = missing_gpu(claim, world);
  if (!needs_gpu && !missing.empty()) return on_cpus(world, "each rank needs a GPU of its own, but " + missing);
  if (needs_nccl && !missing.empty()) {
    throw InputError("parallel.backend",
                     "nccl needs a GPU for each rank, but " + missing +
                         ": start fewer ranks on a machine, or use parallel.backend: mpi, where ranks may share one");
  }
  const bool nccl = world.size() > 1 && missing.empty() && request.transport != Transport::Mpi;
  return on_gpus(gpu, nccl, request, world);
}

}  // namespace meshtrain
