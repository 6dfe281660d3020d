#include "runtime/train/connect.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>

#include "mesh/backends/mpi.h"

namespace meshtrain {
namespace {

Group connect_launched() {
  std::shared_ptr<Backend> backend = mpi_backend();
  std::vector<int64_t> ranks(backend->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string place = "rank " + std::to_string(backend->rank());
  return Group(std::move(backend), "world", std::move(ranks), place);
}

}  // namespace

int ranks_on_this_host(int num_ranks) {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(variable)) return std::clamp(std::atoi(value), 1, num_ranks);
  }
  return num_ranks;
}

Group connect_world() {
  const Group world = launched_by_mpi() ? connect_launched() : Group();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(std::max(1, cores / ranks_on_this_host(world.size())));
  }
  return world;
}

}  // namespace meshtrain
