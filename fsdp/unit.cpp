#include "fsdp/unit.h"

#include <algorithm>
#include <utility>

#include "mesh/device/gradient_state.h"

namespace meshtrain {

Unit::Unit(UnitSpec spec, Sharding sharding) : spec_(std::move(spec)) {
  sharding.is_copy = spec_.is_copy;
  buffers_ = make_flat_buffers(spec_.parameters, sharding);
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

int Unit::num_deferred() const {
  return static_cast<int>(std::ranges::count_if(spec_.parameters, [](const Parameter* parameter) {
    const GradientState* const state = GradientState::of(parameter->tensor);
    return state != nullptr && state->deferred();
  }));
}

at::Device device_of(const std::vector<Unit>& units) {
  return units.front().buffers().front().values().device();
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
