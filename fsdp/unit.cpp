#include "fsdp/unit.h"

#include <utility>

namespace meshtrain {

Unit::Unit(UnitSpec spec, const Sharding& sharding)
    : spec_(std::move(spec)), buffers_(make_flat_buffers(spec_.parameters, sharding)) {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.trainable()) num_trainable_ += static_cast<int>(buffer.segments().size());
  }
}

}  // namespace meshtrain
