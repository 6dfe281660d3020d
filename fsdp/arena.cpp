#include "fsdp/arena.h"

#include <ATen/ops/empty.h>

#include "fsdp/lent_memory.h"

namespace meshtrain {

Arena::Arena(const std::vector<Unit>& units, const std::function<Tenant(const Unit&)>& tenant, int64_t reach) {
  std::vector<Tenant> tenants;
  for (const Unit& unit : units) tenants.push_back(tenant(unit));
  places_ = plan_places(tenants, reach);
  const at::Device device = units.front().buffers().front().values().device();
  memory_ = at::empty({places_.total}, at::TensorOptions(device).dtype(at::kByte));
}

void Arena::lend(size_t unit, const std::vector<at::Tensor>& tensors) const {
  int64_t offset = places_.offsets[unit];
  for (const at::Tensor& tensor : tensors) {
    lend_memory(tensor, memory_, offset);
    offset += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  }
}

}  // namespace meshtrain
