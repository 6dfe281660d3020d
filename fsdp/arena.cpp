#include "fsdp/arena.h"

#include <ATen/ops/zeros.h>

#include "fsdp/lent_memory.h"

namespace meshtrain {

Arena::Arena(const std::vector<Unit>& units, const TensorsOf& tensors, std::optional<int64_t> reach)
    : is_reused_(reach.has_value()) {
  std::vector<Tenant> tenants;
  for (const Unit& unit : units) {
    Tenant& tenant = tenants.emplace_back(Tenant{0, unit.whole_step()});
    for (const at::Tensor& tensor : tensors_.emplace_back(tensors(unit))) {
      tenant.size += static_cast<int64_t>(tensor.nbytes());
    }
  }
  offsets_ = assign_offsets(tenants, reach.value_or(static_cast<int64_t>(units.size())));
  options_ = at::TensorOptions(device_of(units)).dtype(at::kByte);
}

bool Arena::share(const Group& group, Placement placement) {
  memory_ = group.window(offsets_.total, options_, placement);
  if (memory_.defined()) placement_ = placement;
  return memory_.defined();
}

void Arena::settle() {
  if (!memory_.defined()) memory_ = at::zeros({offsets_.total}, options_);
  if (is_reused_) return;
  for (size_t unit = 0; unit < tensors_.size(); ++unit) give(unit);
}

void Arena::lend(size_t unit) const {
  if (is_reused_) give(unit);
}

void Arena::take_back(size_t unit) const {
  if (!is_reused_) return;
  for (const at::Tensor& tensor : tensors_[unit]) take_memory(tensor);
}

void Arena::give(size_t unit) const {
  int64_t offset = offsets_.offsets[unit];
  for (const at::Tensor& tensor : tensors_[unit]) {
    lend_memory(tensor, memory_, offset);
    offset += static_cast<int64_t>(tensor.nbytes());
  }
}

}  // namespace meshtrain
