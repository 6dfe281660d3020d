#include "fsdp/unit.h"

#include <utility>

namespace meshtrain {
namespace {

int64_t num_bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

Unit::Unit(UnitSpec spec, const Sharding& sharding)
    : spec_(std::move(spec)), buffers_(make_flat_buffers(spec_.parameters, sharding)) {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.trainable()) num_trainable_ += static_cast<int>(buffer.segments().size());
  }
}

std::vector<FlatBuffer*> Unit::trainable() {
  std::vector<FlatBuffer*> trained;
  for (FlatBuffer& buffer : buffers_) {
    if (buffer.trainable()) trained.push_back(&buffer);
  }
  return trained;
}

Tenant Unit::tenant(bool gradients) const {
  Tenant tenant{0, whole_step()};
  for (const FlatBuffer& buffer : buffers_) {
    if (!gradients) tenant.size += num_bytes(buffer.values());
    if (gradients && buffer.trainable()) tenant.size += num_bytes(buffer.gradients());
  }
  return tenant;
}

std::vector<const FlatBuffer*> trainable_buffers(const std::vector<Unit>& units) {
  std::vector<const FlatBuffer*> trained;
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (buffer.trainable()) trained.push_back(&buffer);
    }
  }
  return trained;
}

}  // namespace meshtrain
