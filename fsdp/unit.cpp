#include "fsdp/unit.h"

#include <utility>

namespace meshtrain {

Unit::Unit(UnitSpec spec, const Sharding& sharding)
    : spec_(std::move(spec)), buffers_(make_flat_buffers(spec_.parameters, sharding)) {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.trainable()) num_trainable_ += static_cast<int>(buffer.segments().size());
  }
}

Tenant Unit::tenant(bool trainable_only) const {
  Tenant tenant{0, whole_step()};
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.trainable() || !trainable_only) tenant.size += buffer.num_bytes();
  }
  return tenant;
}

}  // namespace meshtrain
