#include "runtime/device/connect_devices.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "mesh/agree.h"
#include "mesh/cuda/plugin.h"
#include "mesh/error.h"
#include "mesh/staged.h"
#include "runtime/config/cpu_only.h"
#include "runtime/train/connect.h"

namespace meshtrain {
namespace {

int local_rank(const Group& world) {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"}) {
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  }
  return world.rank() % ranks_on_this_host(world.size());
}

/// This rank's GPU; ranks take turns where there are fewer of them.
struct Gpu {
  CudaPlugin* plugin = nullptr;
  int number = 0;
};

Gpu find_gpu(const DeviceRequest& request, const Group& world) {
  CudaPlugin& plugin = open_cuda_plugin();
  const int count = plugin.prepare();
  if (!request.allocator.empty()) plugin.set_allocator(request.allocator);
  return {&plugin, local_rank(world) % count};
}

/// Empty when each rank has a GPU of its own, else what stands against it. `identity`: of this rank's GPU, empty when
/// it has none. Collective.
std::string shared_gpu(const std::string& identity, const Group& world) {
  std::string problem;
  std::map<std::string, size_t> owners;
  const std::vector<std::string> identities = gather_texts(world, identity);
  for (size_t rank = 0; rank < identities.size() && problem.empty(); ++rank) {
    const auto [owner, is_new] = owners.emplace(identities[rank], rank);
    if (identities[rank].empty()) {
      problem = "rank " + std::to_string(rank) + " has none";
    } else if (!is_new) {
      problem = "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) + " share one";
    }
  }
  return broadcast_text(world, problem);
}

Computing on_gpus(const Gpu& gpu, bool nccl, const DeviceRequest& request, const MeshLayout& layout,
                  const Group& world) {
  agree(world, [&] { gpu.plugin->use(gpu.number); });
  Computing computing;
  computing.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu.number));
  const std::shared_ptr<Backend> backend =
      nccl ? gpu.plugin->nccl(world.backend(), layout, {.user_buffers = request.nccl_user_buffers})
           : staged(world.backend());
  computing.world = Group(backend, world.name(), world.ranks(), world.place());
  computing.description = "cuda, " + gpu.plugin->describe(gpu.number);
  if (nccl || world.size() == 1) computing.make_graph = [gpu] { return gpu.plugin->make_graph(gpu.number); };
  computing.peak_bytes = [gpu] { return gpu.plugin->peak_bytes(gpu.number); };
  if (world.size() > 1) {
    computing.description += " on the first of " + std::to_string(world.size()) + " ranks, through " +
                             (nccl ? "nccl" : "host memory and mpi");
  }
  return computing;
}

}  // namespace

DeviceRequest device_request(const Recipe& recipe) {
  return {recipe.device, recipe.parallel.backend, !cpu_only(recipe).empty(), recipe.train.cuda_allocator,
          recipe.parallel.nccl_user_buffers};
}

Computing connect_devices(const DeviceRequest& request, const MeshLayout& layout, const Group& world) {
  const bool needs_nccl = request.backend == "nccl", needs_gpu = request.device == "cuda" || needs_nccl;
  const Computing on_cpus{at::kCPU, world, "cpu"};
  if (request.device == "cpu" || (!needs_gpu && request.cpu_only)) return on_cpus;
  Gpu gpu;
  if (needs_gpu) {
    agree(world, [&] { gpu = find_gpu(request, world); });
  } else if (is_cuda_driver_there()) {
    try {
      gpu = find_gpu(request, world);
    } catch (const std::exception&) {  // then it is the CPU
    }
  }
  const std::string shared = shared_gpu(gpu.plugin ? gpu.plugin->identity(gpu.number) : "", world);
  if (!needs_gpu && !shared.empty()) return on_cpus;
  if (needs_nccl && !shared.empty()) {
    throw InputError("parallel.backend: nccl needs a GPU for each rank, but " + shared +
                     ": start fewer ranks on a machine, or use parallel.backend: mpi, where ranks may share one");
  }
  const bool nccl = world.size() > 1 && shared.empty() && request.backend != "mpi";
  return on_gpus(gpu, nccl, request, layout, world);
}

}  // namespace meshtrain
