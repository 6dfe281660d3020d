#include "mesh/device/host_scratch.h"

#include <ATen/ops/empty.h>

#include <map>
#include <mutex>

#include "mesh/device/memory.h"
#include "mesh/device/meta_device.h"

namespace meshtrain {
namespace {

int64_t measure(const HostComputation& compute) {
  HostMemory& memory = HostMemory::counted();
  compute();  // the first call allocates what is kept
  const int64_t before = memory.live();
  memory.restart_peak();
  int64_t results = 0;
  for (const at::Tensor& result : compute()) results += static_cast<int64_t>(result.nbytes());
  return std::max<int64_t>(memory.peak() - before - results, 0);
}

}  // namespace

at::Tensor host_scratch(const std::string& key, const std::function<HostComputation()>& prepare) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> known;
  const std::lock_guard lock(mutex);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, measure(prepare())).first;
  return at::empty({found->second}, at::TensorOptions(at::kMeta).dtype(at::kByte));
}

bool has_host_scratch(const at::Tensor& tensor) {
  return tensor.is_meta() && is_host(tensor.device()) && tensor.numel() > 0;
}

}  // namespace meshtrain
