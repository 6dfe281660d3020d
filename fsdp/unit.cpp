#include "fsdp/unit.h"

namespace meshtrain {

Unit::Unit(UnitSpec spec, int64_t num_shards)
    : name_(std::move(spec.name)), buffers_(make_flat_buffers(spec.parameters, num_shards)) {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.trainable()) num_trainable_ += static_cast<int>(buffer.segments().size());
  }
}

}  // namespace meshtrain
