#include <utility>

#include "mesh/backends/nccl/nccl.h"
#include "mesh/device/cuda/plugin.h"

namespace meshtrain {

std::shared_ptr<Backend> connect_nccl(std::shared_ptr<Backend> host, const NcclOptions& options) {
  using Function = decltype(&meshtrain_nccl_backend);
  return reinterpret_cast<Function>(cuda_plugin_function("meshtrain_nccl_backend"))(std::move(host), options);
}

}  // namespace meshtrain
